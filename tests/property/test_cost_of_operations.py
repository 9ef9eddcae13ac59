"""What an operation costs, in counts that no busy machine changes: calls, values and bytes stored, bytes sent.

A bound is at most a tenth above what was counted when it was last changed. A change that exceeds one either costs too
much, or is worth it: then it moves the bound, and says why.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import pytest

from broker_state.store.memory_kv import MemoryKv
from broker_state.store.rocks_store import RocksStore
from connectors.delta.data_files import write_data_files
from connectors.delta.flusher import AuditFlusher
from connectors.delta.rows import completed_rows
from connectors.delta.tables import AUDIT_TABLES
from connectors.kafka.own_topics import Topics
from pipelines.apply_ops.delta_flush import DeltaFlush
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.publish import Publisher
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.decide_ops.entries import read_slice
from pipelines.decide_ops.entry import Entry, EntryKind
from pipelines.decide_ops.ops_decider import OpsDecider
from popstream.exchange.partitioner import ops_key
from popstream.testing import MemoryJob
from popstream.wire.command import Ack, encode_command
from tests.benchmarks.measured_operations import (
    declare_queue,
    ops_behind,
    put_off_ops,
    single_entry_ops,
    whole_pop_ops,
)
from tests.support.counted_calls import Calls
from tests.support.delta_files import NO_SPARK, create_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from popstream.message import Message
    from popstream.wire.command import Command

MESSAGES = 2_000
LANES = 1_000
WRITES = 10
"""WriteBatches whose rows leave in one flush."""
TURN = 256
"""Records of a partition that are decided one after the other."""


class Cost(NamedTuple):
    """Of one operation, on average."""

    decode_calls: float
    """Functions called by step 2."""
    prefetch_calls: float
    """By step 3."""
    decide_calls: float
    """By step 4, the kernel."""
    entries_calls: float
    """By what encodes answers and rows before step 5."""
    write_calls: float
    """By step 5: what encodes the changes, and makes a WriteBatch of them and the entries."""
    puts: float
    """Changes of the WriteBatch, but for those of the outbox."""
    stored_bytes: float
    """Keys and values of these."""
    outbox_bytes: float
    """Answers and audit rows, as they are stored until they are delivered."""
    table_bytes: float
    """The rows as Parquet, in files of as many rows as all operations have."""
    sent_bytes: float
    """The operation itself."""


def cost_of(commands: list[Command], folder: Path) -> Cost:
    """Decide commands as the deciding thread does, and write their rows."""
    made = list(declare_queue("orders", 0, MESSAGES))
    _, decider = _decider_after(made)
    records = _records(commands, first=len(made))
    decode, prefetch, decide, encode, write = Calls(), Calls(), Calls(), Calls(), Calls()
    for at in range(0, len(records), TURN):
        with decode.counted():
            decoded = decider.decode(records[at : at + TURN])
        assert not decoded.rejected
        with prefetch.counted():
            decider.prefetch(decoded)
        with decide.counted():
            decider.decide(decoded)
    with encode.counted():
        entries = decider.entries(2)
    assert not [row for row in decider.decided.decision.operations if row.code], "every operation is good"
    assert len(decider.decided.decision.answers) == len(commands), "and is answered"
    with RocksStore(folder / "state") as store:
        outbox = Outbox(store)
        with write.counted():
            changes = [*decider.overlay.changes()]
            store.write_changes([*changes, *outbox.changes(entries)])
    totals = (
        *(calls.count for calls in (decode, prefetch, decide, encode, write)),
        len(changes),
        sum(len(key) + len(value or b"") for _, key, value in changes),
        sum(len(entry.value) for entry in entries),
        _table_bytes(entries, folder),
        sum(record.value_bytes for record in records),
    )
    return Cost(*(round(total / len(commands), 3) for total in totals))


def _decider_after(commands: Sequence[Command]) -> tuple[MemoryKv, OpsDecider]:
    """Return a store, and what decides over it, once commands are decided and written."""
    kv = MemoryKv()
    decider = OpsDecider(kv, Decoder(1).decode, results_partitions=1)
    decider.decide_at_once(_records(commands))
    _write(kv, decider, 1)
    return kv, decider


def _write(kv: MemoryKv, decider: OpsDecider, apply_seq: int) -> list[Entry]:
    """Write what is decided, and return its entries."""
    entries = decider.entries(apply_seq)
    kv.write(decider.overlay)
    decider.written()
    return entries


def _records(commands: Iterable[Command], *, first: int = 0) -> list[KafkaRecord]:
    """Return the records of commands in one partition, 20 a millisecond."""
    records = []
    for number, command in enumerate(commands, first):
        value, key = encode_command(command), ops_key(command.topic, command.queue_id)
        records.append(KafkaRecord(0, number, 1_000_000 + number // 20, key, value, len(value)))
    return records


def _table_bytes(entries: list[Entry], folder: Path) -> int:
    """Return the size of the data files with the rows of entries."""
    slices = [read_slice(entry.value) for entry in entries if entry.kind == EntryKind.AUDIT]
    total = 0
    for table in {name for name, _ in slices}:
        of_table = [(2, data) for name, data in slices if name == table]
        rows = completed_rows(table, of_table, "state epoch", "topic id")
        files = write_data_files(folder / table, AUDIT_TABLES[table], rows, durable=False)
        total += sum(file.size for file in files)
    return total


@pytest.mark.pure
@pytest.mark.parametrize(
    ("commands", "bound"),
    [
        pytest.param(
            list(single_entry_ops("orders", 0, "billing", MESSAGES, reply_to=0)),
            Cost(
                decode_calls=2.2,
                prefetch_calls=4.5,
                decide_calls=106,
                entries_calls=1.3,
                write_calls=0.094,
                puts=1.2,
                stored_bytes=380,
                outbox_bytes=327,
                table_bytes=14.7,
                sent_bytes=232,
            ),
            id="a pop and an ack for each message",
        ),
        pytest.param(
            list(whole_pop_ops("orders", 0, "billing", 2, MESSAGES // 2, entry_offsets=1, reply_to=0)),
            Cost(
                decode_calls=2.5,
                prefetch_calls=5.5,
                decide_calls=4_000,
                entries_calls=36.5,
                write_calls=16.2,
                puts=23.7,
                stored_bytes=42_600,
                outbox_bytes=51_100,
                table_bytes=8_600,
                sent_bytes=19_940,
            ),
            id="pops of 1,000 messages, acked one entry each by one operation",
        ),
        pytest.param(
            [
                command
                for number in range(LANES)
                for command in single_entry_ops("orders", 0, f"billing-{number}", 1, reply_to=0)
            ],
            Cost(
                decode_calls=2.2,
                prefetch_calls=4.4,
                decide_calls=155,
                entries_calls=1.3,
                write_calls=4.9,
                puts=4.4,
                stored_bytes=487,
                outbox_bytes=321,
                table_bytes=27,
                sent_bytes=231,
            ),
            id="a pop and an ack in each of 1,000 lanes",
        ),
    ],
)
def test_no_operation_costs_more_than_before(commands: list[Command], bound: Cost, tmp_path: Path) -> None:
    found = cost_of(commands, tmp_path)
    assert all(found), f"something was not counted: {found}"
    assert all(cost <= most for cost, most in zip(found, bound, strict=True)), f"{found} exceeds {bound}"


@pytest.mark.pure
def test_messages_that_are_put_off_cost_those_behind_them_nothing() -> None:
    """Calls of the kernel for pops and acks of single messages, without and with 100,000 delivery times to come."""

    def calls(put_off: int, messages: int = 500) -> int:
        dispatch, *commands = ops_behind("orders", 0, "billing", put_off, messages)
        before = [*declare_queue("orders", 0, 0), *put_off_ops("orders", 0, "billing", put_off), dispatch]
        _, decider = _decider_after(before)
        decoded = decider.decode(_records(commands, first=len(before)))
        decider.prefetch(decoded)
        counted = Calls()
        with counted.counted():
            decider.decide(decoded)
        rows = decider.decided.decision.operations
        assert [row.kind for row in rows] == ["pop", "ack"] * messages
        assert all(row.applied for row in rows)
        return counted.count

    assert calls(100_000) <= 1.1 * calls(0)


@contextmanager
def _outbox_with(operations: int, folder: Path) -> Iterator[Outbox]:
    """Make an outbox with the entries of WriteBatches 1 to 1 + WRITES, of as many operations each."""
    messages = (1 + WRITES) * operations // 2
    declared = list(declare_queue("orders", 0, messages))
    kv, decider = _decider_after(declared)
    records = _records(single_entry_ops("orders", 0, "billing", messages, reply_to=0), first=len(declared))
    with RocksStore(folder / "state") as store:
        outbox = Outbox(store)
        for number in range(1 + WRITES):
            decider.decide_at_once(records[number * operations : (number + 1) * operations])
            entries = _write(kv, decider, number + 1)
            store.write_changes(outbox.changes(entries))
            outbox.written(entries)
        yield outbox


@pytest.mark.parametrize("operations", [60, 600])
def test_no_answer_batch_takes_more_calls_to_publish_than_before(operations: int, tmp_path: Path) -> None:
    """Calls for the answers of a WriteBatch, which are one record as long as they fit, until Kafka has it."""
    calls = Calls()
    sent: list[str] = []

    def send(topic: str, **_: object) -> SimpleNamespace:
        sent.append(topic)
        return SimpleNamespace(add_callback=lambda callback: callback(None), add_errback=lambda _: None)

    with _outbox_with(operations, tmp_path) as outbox:
        prefix = SimpleNamespace(is_fenced=False, require=lambda: None)
        topics, producer, no_letters = Topics.of("popstream"), SimpleNamespace(send=send), SimpleNamespace()
        publisher = Publisher(topics, outbox, producer, no_letters, prefix, lambda error: pytest.fail(error.message))
        answers = list(outbox.undelivered(EntryKind.ANSWERS))
        with calls.counted():
            publisher.publish(answers)
        assert not list(outbox.undelivered(EntryKind.ANSWERS))
    assert len(sent) == len(answers) == 1 + WRITES
    found = calls.count / len(sent)
    assert 0 < found <= 7.7, f"{found} calls exceed 7.7"


@pytest.mark.parametrize("operations", [60, 600])
def test_no_commit_of_a_flush_takes_more_calls_than_before(operations: int, tmp_path: Path) -> None:
    """Calls for a commit with the rows of ten WriteBatches, however many; each of three tables has one."""
    calls = Calls()
    for name in AUDIT_TABLES:
        create_table(tmp_path / "tables", name)
    with _outbox_with(operations, tmp_path) as outbox:
        sink = AuditFlusher(NO_SPARK, tmp_path / "tables", "pipeline", "epoch", ops_topic_id="topic id")
        DeltaFlush(outbox, sink, applied_seq=lambda: 1).flush()  # it fills caches
        flush = DeltaFlush(outbox, sink, applied_seq=lambda: 1 + WRITES)
        with calls.counted():
            flush.flush()
        assert flush.flushed_rows > 2 * WRITES * operations
        assert sink.committed() == dict.fromkeys(("operations", "deliveries", "commit_positions"), 1 + WRITES)
        assert not list(outbox.undelivered(EntryKind.AUDIT))
    found = calls.count / 3
    assert 0 < found <= 450, f"{found} calls exceed 450"


@pytest.mark.parametrize(
    ("acked", "bound"),
    [
        pytest.param(lambda popped: popped[:1], 302, id="a message alone"),
        pytest.param(lambda popped: popped, 0.31, id="1,000 messages of a pop"),
        pytest.param(lambda popped: popped[::2], 11.4, id="every second one of them"),
    ],
)
def test_no_ack_of_a_client_is_longer_than_before(
    acked: Callable[[list[Message]], list[Message]], bound: float
) -> None:
    """Bytes a message of the record that acks messages in one call."""
    job = MemoryJob()
    job.write("orders", 0, [b""] * 1_000)
    with job.consumer("billing", client_id="billing-1") as consumer:
        messages = acked(consumer.pop("orders", 0, 1_000).messages)
        assert all(outcome.applied for outcome in consumer.ack(messages))
    (record,) = [record for record in job.records if isinstance(record, Ack)]
    found = len(encode_command(record)) / len(messages)
    assert found <= bound, f"{found} bytes exceed {bound}"


def test_no_ack_by_a_handler_calls_more_than_before() -> None:
    """Calls for `Message.ack`, in the thread of the handler."""
    job = MemoryJob()
    job.write("orders", 0, [b""] * 1_000)
    with job.consumer("billing") as consumer:
        messages = consumer.pop("orders", 0, 1_000).messages
        counted = Calls()
        with counted.counted():
            outcomes = [message.ack() for message in messages]
        assert all(outcome.result(60).applied for outcome in outcomes)
    found = counted.count / len(messages)
    assert 0 < found <= 21, f"{found} calls exceed 21"
