"""What a verification compares with what, as it is kept: a verification that was stopped goes on by it."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from checkpoints.applied import Applied
from connectors.delta.pieces import PiecedTable, TablePiece

__all__ = ["FORMAT", "TablePlan", "VerifyPlan", "read_plan", "unit_source", "unit_sources"]

FORMAT = 4


class TablePlan(msgspec.Struct, frozen=True, kw_only=True):
    """An audit table, at the version at which it is compared.

    Attributes:
        version: The version.
        pieces: Its pieces; sources are the partitions of the ops topic.
        ends: By partition, the Kafka offset from which on rows are in the outbox.
        compared_from: By partition, the Kafka offset below which its rows come from lost operations.
        first_ms: As in `PiecedTable`.
    """

    version: int
    pieces: list[TablePiece]
    ends: dict[str, int]
    compared_from: dict[str, int]
    first_ms: int | None


class VerifyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A verification.

    Attributes:
        format: Of this record.
        since: The snapshot that was asked for.
        base: Id of the snapshot before the first record; None: an empty state.
        topic: The ops topic.
        topic_id: Kafka's id of it.
        first: By partition, the first Kafka offset to decide.
        end: By partition, the Kafka offset after the last one: where the state ends.
        state: Folder of the state that is verified.
        queues: Folder of the builder's store; None: there is none.
        delta: Folder of the tables.
        applied: How far that state is.
        keys: Digest of the keys of handles and operations.
        quarantine: Records that are rejected undecided.
        tables: The audit tables.
        units: The table `consume_queue`; sources are queues (`unit_source`).
        slices: The ends of the partitions in each slice.
        shares: The partitions of each process.
    """

    format: int = FORMAT
    since: str | None
    base: str | None
    topic: str
    topic_id: str
    first: dict[str, int]
    end: dict[str, int]
    state: str
    queues: str | None
    delta: str
    applied: Applied
    keys: str
    quarantine: list[tuple[int, int, str]]
    tables: dict[str, TablePlan]
    units: PiecedTable
    slices: list[dict[str, int]]
    shares: list[list[int]]

    @property
    def has_units(self) -> bool:
        """Whether there are units to compare, in the builder's store or in the table."""
        return self.queues is not None or bool(self.units.pieces)

    def total(self, share: int) -> int:
        """Return the number of offsets of a share."""
        return sum(self.end[str(p)] - self.first[str(p)] for p in self.shares[share])


def read_plan(path: Path) -> VerifyPlan | None:
    """Return the plan that was kept, or None if there is none of this version."""
    try:
        plan = msgspec.msgpack.decode(path.read_bytes(), type=VerifyPlan)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None
    return plan if plan.format == FORMAT else None


def unit_source(topic: str, queue_id: int, topic_id: str) -> str:
    """Return the source of the units of a queue, as pieces name it."""
    return f"{topic}/{queue_id}/{topic_id}"


def unit_sources(rows: pa.Table) -> pa.ChunkedArray:
    """Return the source of each row of `consume_queue`."""
    return pc.binary_join_element_wise(rows["topic"], rows["queue_id"].cast(pa.string()), rows["topic_id"], "/")
