"""`popstream snapshot`: take a snapshot of the state, or list the snapshots."""

import msgspec
from rich.table import Table

from broker_state.store.rocks_store import BUILDER_FAMILIES, RocksStore
from checkpoints.layout import JobFolder
from checkpoints.ownership import Ownership
from checkpoints.snapshot_store import Snapshot, SnapshotStore
from pipelines.cli.exits import say
from pipelines.cli.job_sources import snapshots_of
from pipelines.cli.printing import standard_output
from pipelines.cli.target import require_state, running_job
from pipelines.control.client import ask
from pipelines.control.messages import SnapshotRequest
from pipelines.job_settings import JobSettings
from pipelines.recovery.take_snapshot import take_snapshot
from pipelines.times import utc_text

__all__ = ["run_list", "run_snapshot", "show_snapshot"]

# The job copies every file before it answers.
TIMEOUT_S = 600.0


def run_snapshot(settings: JobSettings, *, as_json: bool) -> None:
    """Ask the running job for a snapshot, or take one of the stored state.

    Raises:
        Invalid: Nothing was decided yet, or the folder is not that of a job.
        Corrupt: The state is lost or damaged.
        Unavailable: The snapshot cannot be stored, or the job does not answer.
        Fenced: A job is starting or stopping.
    """
    folder = settings.job_folder
    job = running_job(folder)
    if job is not None:
        snapshot = ask(job, SnapshotRequest(), Snapshot, timeout_s=TIMEOUT_S)
    else:
        snapshot = _of_a_stopped_job(folder, snapshots_of(settings))
    show_snapshot(snapshot, as_json=as_json)


def show_snapshot(snapshot: Snapshot, *, as_json: bool) -> None:
    """Say that a snapshot was taken."""
    if as_json:
        print(msgspec.json.encode(snapshot).decode())
        return
    say(f"snapshot {snapshot.id}: {len(snapshot.files)} files, {snapshot.size:,} bytes")


def run_list(settings: JobSettings, *, as_json: bool) -> None:
    """List the snapshots, the newest first.

    Raises:
        Unavailable: Their location cannot be read.
    """
    snapshots = snapshots_of(settings).list()
    if as_json:
        print(msgspec.json.encode(snapshots).decode())
        return
    table = Table()
    for column in ("snapshot", "taken at", "apply_seq", "bytes"):
        table.add_column(column, justify="left" if column in {"snapshot", "taken at"} else "right", overflow="fold")
    for snapshot in snapshots:
        taken = utc_text(snapshot.taken_at_ms // 1000 * 1000)  # the second of its name
        table.add_row(snapshot.id, taken, f"{snapshot.applied.apply_seq:,}", f"{snapshot.size:,}")
    standard_output().print(table if snapshots else "there are no snapshots")


def _of_a_stopped_job(folder: JobFolder, snapshots: SnapshotStore) -> Snapshot:
    require_state(folder)
    with Ownership(folder.lock), RocksStore(folder.state) as state:
        if not folder.queues.is_dir():
            return take_snapshot(state, None, folder.scratch, snapshots)
        with RocksStore(folder.queues, BUILDER_FAMILIES) as queues:
            return take_snapshot(state, queues, folder.scratch, snapshots)
