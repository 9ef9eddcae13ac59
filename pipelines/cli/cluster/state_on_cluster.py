"""Takes the state of a job to a cluster and back, or repartitions it, while no job of its prefix runs."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from broker_state.store.rocks_store import RocksStore
from checkpoints.applied import applied_of
from checkpoints.ownership import Ownership
from pipelines.cli.cluster.state_place import owned, state_place
from pipelines.cli.exits import say
from pipelines.cli.job_sources import snapshots_of
from pipelines.cli.target import require_state
from pipelines.cluster.audit.audit_query import begins_now
from pipelines.cluster.audit.undelivered import require_delivered
from pipelines.cluster.migration.stored_state import Migrated
from pipelines.cluster.migration.to_cluster import migrate_to_cluster
from pipelines.cluster.migration.to_folder import migrate_to_folder
from pipelines.cluster.rescale import rescale
from pipelines.job_settings import JobSettings
from popstream.wire.base_errors import Invalid

__all__ = ["RESCALED_UNOWNED", "run_rescale", "run_to_cluster", "run_to_folder"]

RESCALED_UNOWNED = (
    "when nothing else runs, let `popstream verify` compare the state with the log, and if nothing differs, run"
    " `popstream rescale` again"
)


def run_to_cluster(settings: JobSettings, checkpoint: str, *, only: str | None, var: Path, as_json: bool) -> None:
    """Write the state of a stopped job for a cluster.

    Raises:
        Invalid: There is a state already, or the outbox holds what is not delivered yet.
        Corrupt: The log does not reach back to the state.
        Unavailable: Kafka or the place of the checkpoint cannot be reached.
        Fenced: A job runs.
    """
    folder = settings.job_folder.absolute()
    with contextlib.ExitStack() as stack:
        if only is None:
            require_state(folder)
            stack.enter_context(Ownership(folder.lock))
            path = folder.state
        else:
            path = stack.enter_context(_fetched(settings, only))
        place = stack.enter_context(state_place(settings, checkpoint, var))
        state = stack.enter_context(RocksStore(path, read_only=True))
        applied = applied_of(state)
        again = f"remove {checkpoint}, which may lack what was decided, and migrate once more when nothing else runs"
        require_owned = stack.enter_context(owned(settings, place, applied.epochs, if_lost=again))
        migrated = migrate_to_cluster(
            place.spark,
            state,
            prefix=settings.topic_prefix,
            ops=place.ops,
            log=place.log,
            begins=begins_now(place.connection, settings.topic_prefix),
            checkpoint=checkpoint,
            require_owned=require_owned,
        )
    _report(migrated, f"written for the cluster to {checkpoint}", as_json=as_json)


def run_to_folder(settings: JobSettings, checkpoint: str, *, var: Path, as_json: bool) -> None:
    """Write the state of a stopped job on a cluster to a folder.

    Raises:
        Invalid: The folder has a state, the checkpoint is not that of the prefix, or rows of it are not delivered.
        Corrupt: The log does not reach back to the state.
        Unavailable: Kafka or the place of the checkpoint cannot be reached.
        Fenced: A job runs.
    """
    folder = settings.job_folder.absolute()
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(state_place(settings, checkpoint, var))
        identity = place.identity(settings.topic_prefix)
        again = f"remove {folder.state}, which may lack what was decided, and migrate once more when nothing else runs"
        stack.enter_context(owned(settings, place, identity.epochs, if_lost=again))
        require_delivered(place.spark, place.connection, checkpoint, identity)
        migrated = migrate_to_folder(
            place.spark, checkpoint, prefix=settings.topic_prefix, ops=place.ops, log=place.log, folder=folder
        )
    _report(migrated, f"written to {folder.root}", as_json=as_json)


def run_rescale(settings: JobSettings, checkpoint: str, partitions: int, *, var: Path, as_json: bool) -> None:
    """Repartition the state of a stopped job on a cluster.

    Raises:
        Invalid: The checkpoint is not that of the prefix, or cannot be rescaled so, or this Spark cannot do it.
        Corrupt: The state is another one afterwards.
        Unavailable: Kafka or the place of the checkpoint cannot be reached.
        Fenced: A job runs.
    """
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(state_place(settings, checkpoint, var))
        identity = place.identity(settings.topic_prefix)
        require_owned = stack.enter_context(owned(settings, place, identity.epochs, if_lost=RESCALED_UNOWNED))
        rescaled = rescale(place.spark, checkpoint, identity, partitions, require_owned=require_owned)
    _report(rescaled, f"in {partitions} partitions", as_json=as_json)


@contextlib.contextmanager
def _fetched(settings: JobSettings, snapshot_id: str) -> Iterator[Path]:
    """Yield the folder of the state in a snapshot."""
    snapshots = snapshots_of(settings)
    chosen = next((each for each in snapshots.list() if each.id == snapshot_id), None)
    if chosen is None:
        message = f"there is no snapshot {snapshot_id}: `popstream snapshot --list` shows all"
        raise Invalid(message, subject=snapshot_id)
    with tempfile.TemporaryDirectory(prefix="popstream-snapshot-") as target:
        snapshots.fetch(chosen, Path(target))
        yield Path(target) / "state"


def _report(migrated: Migrated, what: str, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode({"keys": migrated.keys, "digest": migrated.digest}).decode())
        return
    say(f"{migrated.keys:,} keys {what}; both copies have the digest {migrated.digest}")
