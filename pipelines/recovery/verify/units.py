"""Compares the units of the builder's store with the table `consume_queue`, and with the records of message topics.

A unit may be missing in Delta as long as its span is in the builder's outbox. The store is compared with the log where
both have offsets: retention, and the builder's lag, are no difference. Compaction removes records of sparse queues that
the store keeps.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_state.consume_queue import ConsumeQueue, Units, units_between
from broker_state.store.rocks_store import BUILDER_FAMILIES, RocksStore
from connectors.delta.pieces import Span, TablePiece, read_piece, rows_since
from connectors.delta.row_comparison import Comparison, compare_rows
from connectors.delta.tables import CONSUME_QUEUE, table_path
from pipelines.apply_ops.outbox import Outbox
from pipelines.build_consume_queue.builder_records import built_of, read_queues, read_spans, reader_of
from pipelines.build_units.unit_tables import DELTA_SCHEMA, UNIT_SCHEMA, delta_rows, table_of
from pipelines.decide_ops.entry import EntryKind
from pipelines.recovery.ops_log import LostRecords
from pipelines.recovery.verify.plan import VerifyPlan, unit_source, unit_sources
from pipelines.recovery.verify.slices import slices_of
from pipelines.recovery.verify.table_rows import PieceReader
from pipelines.recovery.verify.unknown_queues import unknown_rows
from pipelines.recovery.verify.work_folder import replace_file
from popstream.payload.inner_batch import inner_count
from popstream.wire.dedup_id import dedup_hash_of
from popstream.wire.deliver_at import deliver_at_ms_of
from popstream.wire.headers import BATCH_COUNT_HEADER, BATCH_KEYS_HEADER
from popstream.wire.key_hash import key_hash
from popstream.wire.queue_name import QueueName
from popstream.wire.tag import tag_hash, tag_value

__all__ = ["DifferentQueue", "MessageLog", "UnitResult", "compare_units"]

SLICE_OFFSETS = 50_000


class MessageLog(msgspec.Struct, frozen=True):
    """A partition of a message topic: `span` is what it retains, `read` returns the records of [first, end)."""

    span: Span
    read: Callable[[int, int], Iterator[Any]]


class DifferentQueue(msgspec.Struct, frozen=True):
    """A queue whose units differ from its records, from an offset on."""

    topic: str
    queue_id: int
    first_offset: int


class UnitResult(msgspec.Struct, kw_only=True):
    """What the comparison of units has found so far.

    Attributes:
        slices: Slices that are done.
        in_delta: Units of the store, compared with the table.
        in_outbox: Units that are not in Delta yet.
        in_log: Units of the store, compared with records.
        different_queues: Those with differences in `in_log`.
        not_in_log: Queues that are not compared with a log, with the reason.
        not_in_store: Rows of the table that are not compared, with the reason.
    """

    slices: int = 0
    in_delta: Comparison = msgspec.field(default_factory=Comparison)
    in_outbox: int = 0
    in_log: Comparison = msgspec.field(default_factory=Comparison)
    different_queues: list[DifferentQueue] = []
    not_in_log: list[str] = []
    not_in_store: list[str] = []


def compare_units(
    plan: VerifyPlan,
    noted: Path,
    logs: Mapping[QueueName, MessageLog | str],
    on_progress: Callable[[str, int, int], None],
) -> UnitResult:
    """Compare all units, from where an earlier process stopped.

    Args:
        plan: The verification, of a job with a builder, or with rows that one has left in the table.
        noted: File that says how far the comparison is.
        logs: By queue, its log, or why it is not compared.
        on_progress: Called with what is being done, and offsets done and in all.

    Raises:
        Corrupt: A file is damaged.
        Unavailable: Kafka does not answer.
    """
    if plan.queues is None:
        return UnitResult(not_in_store=unknown_rows(plan, {}, None).not_compared)
    result = _noted(noted)
    with RocksStore(Path(plan.queues), BUILDER_FAMILIES, read_only=True) as store:
        stored = dict(read_queues(store))
        queues = {unit_source(*queue, record.topic_id): (queue, record) for queue, record in stored.items()}
        first = {source: record.start_offset for source, (_, record) in queues.items()}
        end = {source: record.end_offset for source, (_, record) in queues.items()}
        slices = slices_of(first, end, plan.units.pieces, SLICE_OFFSETS)
        waiting = list(_waiting_spans(store))
        reader = PieceReader([(piece.spans, _file_reader(plan, piece)) for piece in plan.units.pieces], queues, _within)
        total = sum(end[source] - first[source] for source in queues)
        result.not_in_log = sorted({log for log in logs.values() if isinstance(log, str)})
        if not result.slices:
            unknown = unknown_rows(plan, stored, built_of(store))
            result.not_in_store = unknown.not_compared
            result.in_delta.add(unknown.extra)
        ends = [first, *slices]
        for number in range(result.slices, len(slices)):
            slice_ = {source: (ends[number][source], ends[number + 1][source]) for source in queues}
            found = pa.concat_tables([DELTA_SCHEMA.empty_table(), *reader.between(slice_)])
            found = rows_since(found, "store_time_ms", plan.units.first_ms)
            sources = unit_sources(found)
            for source, span in slice_.items():
                if span[0] == span[1]:
                    continue
                queue, record = queues[source]
                units = units_between(record, reader_of(store, queue), *span)
                of_queue = found.filter(pc.equal(sources, source))
                _compare_with_delta(result, queue, record, units, of_queue, waiting, plan.units.first_ms)
                log = logs.get(queue, "")
                if isinstance(log, MessageLog):
                    _compare_with_log(result, queue, record, units, log, span)
            result.slices = number + 1
            replace_file(noted, msgspec.msgpack.encode(result))
            done = sum(ends[number + 1][source] - first[source] for source in queues)
            on_progress("comparing units", done, total)
    return result


def _noted(path: Path) -> UnitResult:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=UnitResult)
    except (FileNotFoundError, msgspec.MsgspecError):
        return UnitResult()


def _waiting_spans(store: RocksStore) -> Iterator[tuple[str, Span]]:
    for entry in Outbox(store).undelivered(EntryKind.UNIT_SPANS):
        for span in read_spans(entry):
            yield unit_source(span.topic, span.queue_id, span.topic_id), (span.first_offset, span.end_offset)


def _file_reader(plan: VerifyPlan, piece: TablePiece) -> Callable[[], pa.Table]:
    path = table_path(Path(plan.delta), CONSUME_QUEUE.name)
    return lambda: read_piece(path, piece, DELTA_SCHEMA, may_lack=CONSUME_QUEUE.optional_columns)


def _within(rows: pa.Table, spans: Mapping[str, Span]) -> pa.Table:
    offsets = rows["queue_offset"].to_numpy()
    sources = unit_sources(rows)
    within = np.zeros(rows.num_rows, np.bool_)
    for source, (first, end) in spans.items():
        within |= pc.equal(sources, source).to_numpy() & (offsets >= first) & (offsets < end)
    return rows.filter(pa.array(within))


def _compare_with_delta(
    result: UnitResult,
    queue: QueueName,
    record: ConsumeQueue,
    units: Units,
    found: pa.Table,
    waiting: Iterable[tuple[str, Span]],
    first_ms: int | None,
) -> None:
    wanted = delta_rows(queue, record.topic_id, record.queue_type, units)
    source = unit_source(*queue, record.topic_id)
    in_outbox = np.zeros(wanted.num_rows, np.bool_)
    for of, (first, end) in waiting:
        if of == source:
            in_outbox |= (units.queue_offset >= first) & (units.queue_offset < end)
    if in_outbox.any():
        # A running job may have written some since its store was copied.
        not_there = in_outbox & ~np.isin(units.queue_offset, found["queue_offset"].to_numpy())
        result.in_outbox += int(not_there.sum())
        wanted = wanted.filter(pa.array(~not_there))
    wanted = rows_since(wanted, "store_time_ms", first_ms)
    result.in_delta.add(compare_rows(wanted, found, ("queue_offset",), _described))


def _compare_with_log(
    result: UnitResult, queue: QueueName, record: ConsumeQueue, units: Units, log: MessageLog, span: Span
) -> None:
    first, end = max(span[0], log.span[0]), min(span[1], log.span[1])
    try:
        records = list(log.read(first, end)) if first < end else []
    except LostRecords:  # retention goes on
        return
    found = _log_rows(queue, record, records)
    wanted = table_of(queue, units.between(first, end))
    if record.queue_type == "sparse":
        wanted = wanted.filter(pc.is_in(wanted["queue_offset"], found["queue_offset"].combine_chunks()))
    compared = compare_rows(wanted, found, ("queue_offset",), _described)
    result.in_log.add(compared)
    if not compared.is_equal and not any((each.topic, each.queue_id) == queue for each in result.different_queues):
        result.different_queues.append(DifferentQueue(*queue, _first_difference(wanted, found)))


def _first_difference(wanted: pa.Table, found: pa.Table) -> int:
    """Return the first queue offset at which units and records differ; both are in the order of offsets."""
    pairs = itertools.zip_longest(wanted.to_pylist(), found.to_pylist())
    different = next(pair for pair in pairs if pair[0] != pair[1])
    return min(int(row["queue_offset"]) for row in different if row is not None)


def _log_rows(queue: QueueName, record: ConsumeQueue, records: Iterable[Any]) -> pa.Table:
    """Return the units that records lead to, by the rules of `unit_columns`."""
    is_batch = record.queue_type == "batch"
    has_ids = record.queue_type == "simple"
    rows = [_unit_row(each, is_batch=is_batch, has_ids=has_ids) for each in records]
    columns = list(zip(*rows, strict=True)) if rows else [()] * (len(UNIT_SCHEMA) - 2)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, list(UNIT_SCHEMA)[2:], strict=True)]
    names = [pa.repeat(queue[0], len(rows)), pa.repeat(pa.scalar(queue[1], pa.int32()), len(rows))]
    return pa.table([*names, *arrays], schema=UNIT_SCHEMA)


def _unit_row(record: Any, *, is_batch: bool, has_ids: bool) -> tuple[Any, ...]:  # noqa: ANN401 - kafka-python has no types
    size = len(record.value or b"")
    count = inner_count(record.headers, size)
    headers = dict(record.headers)
    is_inner_batch = is_batch and BATCH_COUNT_HEADER in headers and count is not None
    return (
        record.offset,
        record.timestamp,
        size,
        _signed(tag_hash(tag_value(record.headers))),
        _signed(key_hash(record.key)),
        count if is_inner_batch else 1,
        (headers.get(BATCH_KEYS_HEADER) or None) if is_inner_batch else None,
        count is not None or not is_batch,
        deliver_at_ms_of(record.headers) or None,
        (dedup_hash_of(record.headers) or None) if has_ids else None,
    )


def _signed(hashed: int) -> int:
    """Return the bits of a u64 as the table has them."""
    return hashed - (1 << 64) if hashed >> 63 else hashed


def _described(row: dict[str, Any]) -> str:
    return f"{row['topic']}/{row['queue_id']}, queue offset {row['queue_offset']}"
