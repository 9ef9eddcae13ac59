"""What a restore puts in place of the files of a job: nothing is deleted, the former ones are moved to `replaced/`."""

import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import structlog

from broker_state.store.rocks_store import BUILDER_FAMILIES, DiskFull, RocksStore, StoreStopped
from checkpoints.layout import JobFolder
from checkpoints.table_file import verify_tables
from connectors.delta.tables import TABLES, table_path
from pipelines.apply_ops.outbox import Outbox
from pipelines.build_consume_queue.builder import Builder
from pipelines.recovery.candidates import read_all
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["move_tables_away", "put_in_place"]

_log = structlog.get_logger(__name__)


def move_tables_away(folder: JobFolder, tables: Iterable[str]) -> None:
    """Move damaged tables to `replaced/`, so that a restore computes their rows again.

    Raises:
        Invalid: There is no table with this name; none was moved.
    """
    wanted = sorted(set(tables))
    if unknown := [name for name in wanted if name not in TABLES]:
        message = f"there is no table {unknown[0]}: the tables are {', '.join(TABLES)}"
        raise Invalid(message, subject=unknown[0])
    for name in wanted:
        present = table_path(folder.delta, name)
        if present.exists():
            replaced = _new_folder_for_replaced(folder.replaced_tables)
            replaced.mkdir(parents=True)
            present.rename(replaced / name)
            _log.warning("table_moved_away", table=name, to=str(replaced / name))


def put_in_place(folder: JobFolder, restored: Path, *, keep_queues: bool) -> Path | None:
    """Move the restored stores into the job's folder, and the present ones to `replaced/`; return that folder.

    A damaged builder's store is not put in place: the next start builds it again.

    Args:
        folder: Folder of the job.
        restored: Folder with the state, and perhaps the builder's store.
        keep_queues: Keep the present builder's store unless it is damaged: it continues at its own ends, whatever the
            state is.
    """
    replaced = _new_folder_for_replaced(folder.replaced)
    moved_to = None
    for source, present in ((restored / "queues", folder.queues), (restored / "state", folder.state)):
        if present == folder.queues and keep_queues and _is_undamaged(present):
            continue
        if present.exists():
            moved_to = replaced
            replaced.mkdir(parents=True, exist_ok=True)
            present.rename(replaced / present.name)
        if source.is_dir() and (present != folder.queues or _is_undamaged(source)):
            source.rename(present)
    return moved_to


def _new_folder_for_replaced(folder: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return folder / f"{stamp}-{uuid.uuid4().hex[:6]}"


def _is_undamaged(queues: Path) -> bool:
    if not queues.is_dir():
        return False
    try:
        with RocksStore(queues, BUILDER_FAMILIES) as store:
            verify_tables(store)
            read_all(store, BUILDER_FAMILIES)
            Builder(store, Outbox(store), "")  # decodes its records
    except DiskFull:
        raise
    except (Corrupt, Invalid, StoreStopped) as error:
        _log.warning("builder_store_damaged", error=str(error))
        return False
    return True
