"""Takes snapshots: RocksDB checkpoints of a job's stores, verified and copied to the snapshot storage."""

import secrets
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from broker_state.store.overlay import Family
from broker_state.store.rocks_store import BUILDER_FAMILIES, FAMILIES, RocksStore
from checkpoints.applied import applied_of
from checkpoints.snapshot_store import Snapshot, SnapshotStore
from checkpoints.table_file import verify_table
from popstream.wire.base_errors import RESTORE, Corrupt, without_restore

__all__ = ["take_image", "take_snapshot"]


def take_image(store: RocksStore, scratch: Path) -> Path:
    """Take a RocksDB checkpoint of a store, and return its folder. Its files are linked, not copied.

    Args:
        store: A store of the job; writes continue in the meantime.
        scratch: A folder on the same disk.
    """
    image = scratch / secrets.token_hex(8)
    image.parent.mkdir(parents=True, exist_ok=True)
    store.copy_to(image)
    return image


def take_snapshot(
    state: RocksStore, queues: RocksStore | None, scratch: Path, snapshots: SnapshotStore, *, reads_all: bool = True
) -> Snapshot:
    """Take a snapshot of the stores, verify it and upload it; writes continue in the meantime.

    The builder's store comes first: dispatches that have left its outbox are then applied in the state. Verified are
    the blocks of each table file that the storage does not have, and that both copies open with all changes.

    Args:
        state: State of the job.
        queues: Store of its builder, if there is one.
        scratch: A folder on the same disk, for links; a sub-folder is created and removed.
        snapshots: The snapshot storage.
        reads_all: As in `SnapshotStore.put`.

    Raises:
        Unavailable: The storage does not accept it.
        Corrupt: A file of the stores is damaged. No snapshot is taken.
    """
    folder = scratch / secrets.token_hex(8)
    folder.mkdir(parents=True)
    try:
        taken_at_ms = int(time.time() * 1000)
        if queues is not None:
            with _opened_copy(queues, folder / "queues", BUILDER_FAMILIES):
                pass
        with _opened_copy(state, folder / "state", FAMILIES) as copy:
            applied = applied_of(copy)
        return snapshots.put(folder, applied, taken_at_ms, _verify_file, reads_all=reads_all)
    except Corrupt as error:
        message = f"no snapshot was taken: {without_restore(error.message)}: {RESTORE}"
        raise Corrupt(message, subject=error.subject) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _opened_copy(store: RocksStore, folder: Path, families: Iterable[Family]) -> RocksStore:
    """Copy a store, and open the copy, which reads its manifest and its log."""
    last_sequence = store.last_sequence
    store.copy_to(folder)
    try:
        copy = RocksStore(folder, families, read_only=True)
    except Corrupt:
        for path in sorted(folder.iterdir()):
            _verify_file(path)  # if a table file is damaged, this names it
        raise
    if copy.last_sequence < last_sequence:  # RocksDB ignores a log from its first damaged record on
        copy.close()
        message = f"the copy of {folder.name} lacks the last changes: its log is damaged"
        raise Corrupt(message, subject=folder.name)
    return copy


def _verify_file(path: Path) -> None:
    if path.suffix == ".sst":
        verify_table(path)
