"""Which records are quarantined, by what a job has left: a replay must not decide them either.

The table `rejected` says it, and so does each state (pipelines.apply_ops.quarantine). A table that is computed again is
empty at first, and the state that is taken may be older than a record's quarantine. So each state counts that can be
opened, and each file that can be read of the tables that earlier restores, or this one, moved to `replaced/`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import structlog

from broker_state.audit import RejectReason
from broker_state.store.rocks_store import META, RocksStore, StoreStopped
from checkpoints.applied import APPLIED_KEY, applied_of
from checkpoints.layout import JobFolder
from connectors.delta.opened_file import OpenedFile
from connectors.delta.schemas import columns_of
from connectors.delta.tables import REJECTED
from pipelines.apply_ops.quarantine import Quarantine, QuarantinedRecord
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["known_quarantine", "quarantine_in"]

_log = structlog.get_logger(__name__)


def known_quarantine(folder: JobFolder, ops_topic_id: str) -> dict[QuarantinedRecord, str]:
    """Return the error of each record that the states and the replaced tables in a folder know to be quarantined."""
    found: dict[QuarantinedRecord, str] = {}
    for table in sorted(folder.replaced_tables.glob(f"*/{REJECTED.name}")):
        found |= dict(_rows_of(table, ops_topic_id))
    for state in (*sorted(folder.replaced.glob("*/state")), folder.state):
        found |= quarantine_in(state, ops_topic_id)
    return found


def quarantine_in(state: Path, ops_topic_id: str) -> dict[QuarantinedRecord, str]:
    """Return the list of a state; empty if it cannot be opened, or is of another ops topic."""
    if not state.is_dir():  # opening it would make the folder
        return {}
    with contextlib.suppress(Corrupt, Invalid, StoreStopped), RocksStore(state, read_only=True) as store:
        if store.get(META, APPLIED_KEY) is not None and applied_of(store).ops_topic_id == ops_topic_id:
            return dict(Quarantine(store))
    return {}


def _rows_of(table: Path, ops_topic_id: str) -> Iterator[tuple[QuarantinedRecord, str]]:
    """Yield what the data files of a table say. Its log may be what is damaged."""
    schema = columns_of(REJECTED, ["partition", "kafka_offset", "reason", "detail", "ops_topic_id"])
    for file in sorted(table.rglob("*.parquet")):
        if "_delta_log" in file.parts:
            continue
        try:
            with OpenedFile(table, str(file.relative_to(table))) as opened:
                for rows in opened.in_parts(schema):
                    is_wanted = pc.and_(
                        pc.equal(rows["reason"], RejectReason.QUARANTINED),
                        pc.equal(rows["ops_topic_id"], ops_topic_id),
                    )
                    for row in rows.filter(is_wanted).to_pylist():
                        yield (row["partition"], row["kafka_offset"]), row["detail"] or ""
        except Corrupt as error:
            _log.warning("quarantine_unreadable", file=str(file), error=error.message)
