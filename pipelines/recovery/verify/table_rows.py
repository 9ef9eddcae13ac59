"""The rows that should equal the recomputed ones: those in the files of a table, and those still in the outbox."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from broker_state.store.rocks_store import OUTBOX, RocksStore
from connectors.delta.pieces import Span, TablePiece, read_piece, rows_between, spans_of
from connectors.delta.row_comparison import comparable_schema
from connectors.delta.rows import decode_rows
from connectors.delta.tables import AUDIT_TABLES, table_path
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops.entries import read_slice
from pipelines.decide_ops.entry import Entry, EntryKind
from pipelines.recovery.verify.plan import VerifyPlan
from popstream.wire.base_errors import RESTORE, Corrupt

__all__ = ["PieceReader", "audit_readers"]


class _Lazy(NamedTuple):
    spans: dict[str, Span]
    read: Callable[[], pa.Table]


class PieceReader:
    """Reads pieces slice by slice. A piece that later slices need is kept, and read once.

    Args:
        pieces: Each with the spans of its sources, and how its rows are read.
        sources: The sources to read.
        within: Returns those of some rows that are in the spans of their sources.
    """

    def __init__(
        self,
        pieces: Iterable[tuple[dict[str, Span], Callable[[], pa.Table]]],
        sources: Container[str],
        within: Callable[[pa.Table, Mapping[str, Span]], pa.Table],
    ) -> None:
        self._left = [
            _Lazy({source: span for source, span in spans.items() if source in sources}, read) for spans, read in pieces
        ]
        self._within = within
        self._kept: dict[int, pa.Table] = {}

    def between(self, slice_: Mapping[str, Span]) -> list[pa.Table]:
        """Return the rows of a slice, which follows the slices before; `slice_` has the span of each source."""
        found, left = [], []
        for piece in self._left:
            spans = {
                source: (max(first, slice_[source][0]), min(end, slice_[source][1]))
                for source, (first, end) in piece.spans.items()
            }
            is_needed_later = any(end > slice_[source][1] for source, (_, end) in piece.spans.items())
            if wanted := {source: span for source, span in spans.items() if span[0] < span[1]}:
                rows = self._kept.pop(id(piece), None)
                rows = piece.read() if rows is None else rows
                found.append(self._within(rows, wanted))
                if is_needed_later:
                    self._kept[id(piece)] = rows
            if is_needed_later:
                left.append(piece)
        self._left = left
        return found


def audit_readers(
    plan: VerifyPlan, share: Sequence[int], state: RocksStore
) -> tuple[dict[str, PieceReader], dict[str, PieceReader]]:
    """Return, by audit table, readers of the rows of some partitions: in Delta, and in the outbox only."""
    ours = {str(partition) for partition in share}
    waiting: dict[str, list[tuple[dict[str, Span], Callable[[], pa.Table]]]] = {name: [] for name in AUDIT_TABLES}
    for name, key, spans in _outbox_pieces(state):
        ends = plan.tables[name].ends
        fresh = {p: (max(first, ends.get(p, 0)), end) for p, (first, end) in spans.items() if p in ours}
        if fresh := {p: span for p, span in fresh.items() if span[0] < span[1]}:
            waiting[name].append((fresh, _outbox_reader(state, name, key)))
    in_delta = {
        name: PieceReader([(piece.spans, _file_reader(plan, name, piece)) for piece in table.pieces], ours, _within)
        for name, table in plan.tables.items()
    }
    return in_delta, {name: PieceReader(pieces, ours, _within) for name, pieces in waiting.items()}


def _within(rows: pa.Table, spans: Mapping[str, Span]) -> pa.Table:
    return rows_between(rows, "partition", "kafka_offset", {int(p): span for p, span in spans.items()})


def _file_reader(plan: VerifyPlan, name: str, piece: TablePiece) -> Callable[[], pa.Table]:
    schema = comparable_schema(AUDIT_TABLES[name])
    with_topic = schema.append(pa.field("ops_topic_id", pa.string()))

    def read() -> pa.Table:
        path = table_path(Path(plan.delta), name)
        rows = read_piece(path, piece, with_topic, may_lack=AUDIT_TABLES[name].optional_columns)
        is_ours = pc.equal(rows["ops_topic_id"], plan.topic_id)
        rows = rows.drop_columns("ops_topic_id")
        return rows if pc.all(is_ours).as_py() else rows.filter(is_ours)

    return read


def _outbox_pieces(state: RocksStore) -> Iterator[tuple[str, bytes, dict[str, Span]]]:
    for entry in Outbox(state).undelivered(EntryKind.AUDIT):
        name, rows = _decoded(entry)
        yield name, entry.key, spans_of(rows["partition"].cast(pa.string()), rows["kafka_offset"])


def _decoded(entry: Entry) -> tuple[str, pa.Table]:
    name, data = read_slice(entry.value)
    return name, decode_rows(name, [data])


def _outbox_reader(state: RocksStore, name: str, key: bytes) -> Callable[[], pa.Table]:
    schema = comparable_schema(AUDIT_TABLES[name])

    def read() -> pa.Table:
        value = state.get(OUTBOX, key)
        if value is None:
            message = f"an entry of the outbox with rows of {name} is gone: {RESTORE}"
            raise Corrupt(message, subject=name)
        return decode_rows(name, [read_slice(value)[1]]).select(schema.names).cast(schema)

    return read
