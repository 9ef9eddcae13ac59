"""`popstream snapshot --checkpoint`: a snapshot of the state of a stopped job on a cluster, as every job has them."""

import tempfile
from pathlib import Path

from broker_state.store.rocks_store import RocksStore
from pipelines.cli.cluster.state_place import owned, state_place
from pipelines.cli.job_sources import snapshots_of
from pipelines.cli.spark_tools import working
from pipelines.cli.state.snapshot import show_snapshot
from pipelines.cluster.audit.undelivered import require_delivered
from pipelines.cluster.copy_of_state import Checkpoint, copy_state
from pipelines.job_settings import JobSettings
from pipelines.recovery.take_snapshot import take_snapshot

__all__ = ["run_snapshot_of_checkpoint"]


def run_snapshot_of_checkpoint(settings: JobSettings, checkpoint: str, *, var: Path, as_json: bool) -> None:
    """Take a snapshot of the committed state: with it another checkpoint, or a folder, goes on where this one is.

    Consume queues are not in it: they are built again from the message topics.

    Raises:
        Invalid: There is no state of a job, it has decided nothing, or rows of it are not delivered.
        Corrupt: The log is not the one that was decided, or no longer reaches back to the state.
        Unavailable: Kafka or a place cannot be reached, or the snapshot cannot be stored.
        Fenced: The job runs.
    """
    snapshots = snapshots_of(settings)
    with tempfile.TemporaryDirectory(prefix="popstream-snapshot-") as scratch:
        path = Path(scratch, "state")
        with state_place(settings, checkpoint, var) as place:
            identity = place.identity(settings.topic_prefix)
            again = "there is no snapshot of this run: take one when nothing else runs"
            with owned(settings, place, identity.epochs, if_lost=again), working("copying the state"):
                require_delivered(place.spark, place.connection, checkpoint, identity)
                copy_state(Checkpoint(place.spark, checkpoint, identity, place.log), path)
        with RocksStore(path) as state:
            snapshot = take_snapshot(state, None, Path(scratch), snapshots)
    show_snapshot(snapshot, as_json=as_json)
