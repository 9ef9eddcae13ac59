"""`popstream what-if`: what other settings would have changed."""

import functools
from pathlib import Path

import msgspec

from checkpoints.layout import JobFolder
from pipelines.cli.job_sources import log_of, open_kafka, require_keys, snapshots_of
from pipelines.cli.printing import print_progress, standard_output
from pipelines.cli.tables.why import local_zone
from pipelines.cli.target import running_job, settings_of_job
from pipelines.job_settings import JobSettings
from pipelines.tuning.other_settings import OtherSettings
from pipelines.tuning.what_if import WhatIfInputs, what_if
from pipelines.tuning.what_if_report import MODEL, report_parts

__all__ = ["run_what_if"]


def run_what_if(
    settings: JobSettings,
    other: OtherSettings,
    *,
    var: Path,
    from_ms: int | None,
    until_ms: int | None,
    work: Path | None,
    as_json: bool,
) -> None:
    """Replay a range of the log, and print what would have changed. Progress goes to standard error.

    Raises:
        Invalid: See `what_if`.
        Corrupt: A file of a snapshot is damaged.
        Unavailable: Kafka does not answer, or the disk is full.
    """
    other.require_valid()
    job = running_job(JobFolder(settings.folder.absolute()))
    settings = settings_of_job(settings, job)
    with open_kafka(settings, var) as connection:
        require_keys(connection, settings)
        inputs = WhatIfInputs(
            log=log_of(connection, settings.topic_prefix),
            connection=connection,
            snapshots=snapshots_of(settings),
            handle_ring=settings.handle_ring,
            admin_ring=settings.admin_ring,
        )

        report = functools.partial(print_progress, as_json=as_json)
        found = what_if(inputs, other, from_ms=from_ms, until_ms=until_ms, work=work, on_report=report)
    if as_json:
        print(msgspec.json.encode({**msgspec.to_builtins(found), "model": MODEL}).decode())
        return
    console = standard_output()
    for part in report_parts(found, local_zone()):
        console.print(part, markup=False, soft_wrap=isinstance(part, str))
