"""The settings of `popstream up` that a job on a cluster does not follow, and what does their work there."""

from typing import Final

from pipelines.job_settings import JobSettings
from popstream.wire.base_errors import Invalid

__all__ = ["require_place_of_tables", "unused_settings"]

_MAINTAIN: Final = "while the job is stopped, `popstream maintain` does it in tables that are in a folder"
_INSTEAD: Final = {
    "audit_retention_days": _MAINTAIN,
    "maintain_interval_s": _MAINTAIN,
    "outbox_bytes_max": "what is not in the tables yet waits in Kafka",
    "scrub_interval_s": "`popstream verify --checkpoint URL` reads the whole state",
    "snapshot_interval_s": "`popstream snapshot --checkpoint URL` takes snapshots of a stopped job",
    "tables_group_readable": "files get the permissions that the umask of Spark's workers gives",
    "traces": "there are none",
}


def unused_settings(settings: JobSettings) -> list[str]:
    """Return a line for each setting that was set, asks for something, and has no effect.

    >>> unused_settings(JobSettings(traces=True, maintain_interval_s=0))
    ['traces has no effect on a cluster: there are none']
    """
    asked = (name for name in _INSTEAD if name in settings.model_fields_set and getattr(settings, name))
    return [f"{name} has no effect on a cluster: {_INSTEAD[name]}" for name in asked]


def require_place_of_tables(settings: JobSettings, tables: str | None) -> None:
    """Refuse settings that say where tables are, if no option does: they would be elsewhere.

    Raises:
        Invalid: They do.
    """
    if settings.tables is not None and tables is None:
        message = (
            f"the setting tables ({settings.tables}) is for a job on one machine: name the place of this job's tables"
            " with --tables; by default they are in the checkpoint, and they cannot be moved later"
        )
        raise Invalid(message, subject="tables")
