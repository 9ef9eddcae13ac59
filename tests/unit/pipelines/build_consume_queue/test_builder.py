"""Claim: the builder's store is a function of the log alone, and every dispatch reaches the job at last.

Method: the real store and outbox on disk; Kafka's part is given as topics and scans, the job is the real kernel in
memory (MemoryJob), behind the real transport.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from broker_state.consume_queue import ContradictionError, Scan, Units, holes, units_between
from broker_state.store.rocks_store import BUILDER_FAMILIES, QUEUES, UNITS, RocksStore
from pipelines.apply_ops.outbox import Outbox
from pipelines.build_consume_queue import queue_view
from pipelines.build_consume_queue.builder import Builder
from pipelines.build_consume_queue.builder_records import UnitsInDelta, read_spans
from pipelines.build_consume_queue.dispatch_sender import DispatchSender
from pipelines.build_consume_queue.queue_view import QueueRequest
from pipelines.build_units.queue_change import declare_of
from pipelines.decide_ops.entry import EntryKind
from popstream import Transport
from popstream.testing.memory_job import MemoryJob
from popstream.topics.message_topics import MessageTopic
from popstream.wire.answer import Answer
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Declare, Dispatch, Policy, Pop, WrittenRange
from popstream.wire.key_hash import key_hash
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason
from tests.support.threads import leaves_no_thread
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC = "orders"
QUEUE: QueueName = (TOPIC, 0)


def topic(topic_id: str = "id-1", start: int = 0, partitions: int = 1) -> dict[str, MessageTopic]:
    numbers = range(partitions)
    return {TOPIC: MessageTopic(TOPIC, topic_id, dict.fromkeys(numbers, start), dict.fromkeys(numbers, start))}


def scan(first: int, end: int, *offsets: int) -> Scan:
    found = np.array(offsets or range(first, end), np.int64)
    return Scan(first, end, Units.simple(found, found * 0 + 100, found * 0 + 1_000))


def tens(first: int, end: int) -> Scan:
    """Units of ten messages each."""
    units = scan(first, end).units
    return Scan(first, end, replace(units, inner_count=units.inner_count * 10))


def nothing(first: int, end: int) -> Scan:
    return Scan(first, end, Units.of([]))


class Lab:
    """A builder on disk that can be reopened, and all operations that it ever dispatched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.counted: dict[tuple[str, int, str, int], int] = {}
        """What the table says where the messages of a queue are counted on."""
        self.open()

    def open(self) -> None:
        self.store = RocksStore(self._folder, BUILDER_FAMILIES)
        self.outbox = Outbox(self.store)
        self.builder = Builder(self.store, self.outbox, "epoch", lambda *place: self.counted.get(place))

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def stored(self) -> dict[tuple[str, bytes], bytes]:
        return {(family, key): value for family in (QUEUES, UNITS) for key, value in self.store.scan(family, b"")}

    def offsets(self, queue: QueueName = QUEUE) -> list[int]:
        found = units_between(self.builder.queues[queue], self.builder.get(queue), 0, 1 << 62)
        return list(found.queue_offset.tolist())

    def spans(self) -> list[tuple[int, int, int]]:
        return [
            (span.first_offset, span.end_offset, span.unit_count)
            for entry in self.outbox.undelivered(EntryKind.UNIT_SPANS)
            for span in read_spans(entry)
        ]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "queues")
    yield made
    made.store.close()


def test_one_write_batch_has_units_progress_and_outbox_entries(lab: Lab) -> None:
    lab.builder.update_topics(topic(), {})
    written = lab.store.write_batches_written
    lab.builder.append({QUEUE: scan(0, 6, 0, 1, 4)})
    assert lab.store.write_batches_written == written + 1
    lab.reopen()
    assert lab.offsets() == [0, 1, 4]
    assert lab.builder.queues[QUEUE].end_offset == 6
    assert lab.builder.built.build_seq == 2
    assert [entry.apply_seq for entry in lab.outbox.undelivered(EntryKind.DISPATCH)] == [1, 2]
    assert lab.spans() == [(0, 6, 3)]


def test_cuts_and_repeated_scans_leave_the_same_bytes(lab: Lab, tmp_path: Path) -> None:
    """The log as one scan, and as several scans, each repeated after a restart."""
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 3000, *range(0, 3000, 3))})
    other = Lab(tmp_path / "other")
    other.builder.update_topics(topic(), {})
    for first in range(0, 3000, 250):
        piece = scan(first, first + 250, *(at for at in range(first, first + 250) if not at % 3))
        other.builder.append({QUEUE: piece})
        other.reopen()
        assert not [entry for entry in other.builder.append({QUEUE: piece}) if entry.kind == EntryKind.UNIT_SPANS]
    assert other.stored() == lab.stored()
    other.store.close()


def test_a_log_that_contradicts_the_units_is_an_error(lab: Lab) -> None:
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 10)})
    before = lab.stored()
    with pytest.raises(ContradictionError, match="truncate the queue at 5"):
        lab.builder.append({QUEUE: scan(5, 12, 6, 7, 11)})
    assert lab.stored() == before


def test_a_micro_batch_without_records_is_holes(lab: Lab) -> None:
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 5)})
    lab.builder.append({QUEUE: nothing(5, 9)})
    assert list(holes(lab.builder.queues[QUEUE], lab.builder.get(QUEUE), 0, 99)) == [(5, 9)]
    assert lab.spans() == [(0, 5, 5)]


def test_retention_moves_the_start_also_past_the_end(lab: Lab) -> None:
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 10)})
    (entry,) = lab.builder.update_topics(topic(start=4), {})
    assert b'"skip":[[0,3]]' in entry.value
    assert lab.offsets() == list(range(4, 10))
    (entry,) = lab.builder.update_topics(topic(start=25), {})
    assert b'"skip":[[4,24]]' in entry.value
    assert (lab.offsets(), lab.builder.queues[QUEUE].end_offset) == ([], 25)
    assert lab.builder.update_topics(topic(start=25), {}) == []


def test_a_recreated_topic_removes_its_old_queues(lab: Lab) -> None:
    lab.builder.update_topics(topic(partitions=2), {})
    lab.builder.append({QUEUE: scan(0, 3000), (TOPIC, 1): scan(0, 5)})
    entries = lab.builder.update_topics(topic("id-2"), {TOPIC: "batch"})
    assert len(entries) == 1
    assert (lab.offsets(), lab.offsets((TOPIC, 1))) == ([], list(range(5)))
    record = lab.builder.queues[QUEUE]
    assert (record.topic_id, record.queue_type, record.end_offset) == ("id-2", "batch", 0)


def test_a_queue_keeps_its_type(lab: Lab) -> None:
    lab.builder.update_topics(topic(), {})
    with pytest.raises(Invalid, match="exists as a simple queue, and cannot become batch"):
        lab.builder.update_topics(topic(), {TOPIC: "batch"})


def test_a_truncated_queue_is_rebuilt_byte_for_byte_and_writes_no_row_twice(lab: Lab) -> None:
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 3000, *range(0, 3000, 2))})
    before, spans = lab.stored(), lab.spans()
    assert lab.builder.truncate(QUEUE, 1501) == 1501
    lab.reopen()
    lab.builder.append({QUEUE: scan(1501, 2500, *range(1502, 2500, 2))})
    lab.builder.append({QUEUE: scan(2500, 3000, *range(2500, 3000, 2))})
    assert lab.stored() == before
    assert lab.spans() == spans
    lab.builder.append({QUEUE: scan(3000, 3010)})
    assert lab.spans() == [*spans, (3000, 3010, 10)]


def in_delta(topic_id: str, end_offset: int) -> UnitsInDelta:
    """The units in Delta, of a topic that exists."""
    return UnitsInDelta({(*QUEUE, topic_id): end_offset} if end_offset else {}, {QUEUE[0]: topic_id})


@pytest.mark.parametrize("delta_end", [0, 4, 1501, 3000, 4000])
def test_a_restored_store_writes_every_row_that_the_table_lacks_and_no_other(lab: Lab, delta_end: int) -> None:
    """The table ends before, at or after the end of the store."""
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 3000, *range(0, 3000, 2))})
    before = lab.stored()
    lab.builder.begin_epoch("another", in_delta("id-1", delta_end))
    lab.reopen()
    assert lab.builder.built.state_epoch == "another"
    left = len(range(delta_end + delta_end % 2, 3000, 2))
    assert lab.spans() == ([(delta_end, 3000, left)] if left else [])
    assert lab.stored() == before
    lab.builder.append({QUEUE: scan(3000, 5000)})
    first = max(3000, delta_end)
    assert lab.spans()[-1] == (first, 5000, 5000 - first)
    assert len(lab.spans()) == (2 if left else 1)


def test_a_new_store_knows_the_rows_of_the_one_that_was_lost(lab: Lab) -> None:
    lab.builder.begin_epoch("another", in_delta("id-1", 6))
    lab.reopen()
    assert lab.builder.built.state_epoch == "another"
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 10)})
    assert lab.spans() == [(6, 10, 4)]


def test_a_search_for_a_message_id_says_that_ids_of_plain_records_are_not_indexed(lab: Lab) -> None:
    lab.builder.update_topics(topic(), {TOPIC: "batch"})
    lab.builder.append({QUEUE: scan(0, 3)})
    request = QueueRequest(topic=TOPIC, key_hash=key_hash(b"a1b2c3d4e5f6-0"))
    (found,) = queue_view._search(lab.builder.queues[QUEUE], lab.builder.get(QUEUE), request)
    assert (found.unit, "ids of plain records are not indexed" in found.why) == (None, True)


@pytest.mark.parametrize(("start", "base"), [(0, 0), (5, 50), (10, 100), (12, 100)])
def test_a_new_store_goes_on_to_count_the_messages_of_the_one_that_was_lost(lab: Lab, start: int, base: int) -> None:
    """Of ten units with ten messages each, which only the table still has, the log has those from `start` on."""
    lab.counted[(*QUEUE, "id-1", start)] = base
    lab.builder.begin_epoch("another", in_delta("id-1", 10))
    lab.reopen()
    lab.builder.update_topics(topic(start=start), {TOPIC: "batch"})
    lab.builder.append({QUEUE: tens(start, 15)})
    (span,) = [span for entry in lab.outbox.undelivered(EntryKind.UNIT_SPANS) for span in read_spans(entry)]
    first = max(10, start)
    assert (span.first_offset, span.message_base) == (first, 100)
    assert lab.builder.queues[QUEUE].end_message_base == 100 + 10 * (15 - first)


def test_a_recreated_topic_counts_its_messages_from_0(lab: Lab) -> None:
    lab.counted[(*QUEUE, "id-1", 0)] = 70
    lab.builder.begin_epoch("another", in_delta("id-1", 10))
    lab.builder.update_topics(topic("id-2"), {TOPIC: "batch"})
    assert lab.builder.queues[QUEUE].start_message_base == 0


def test_a_restored_store_of_an_earlier_topic_keeps_what_the_table_has_of_the_present_one(lab: Lab) -> None:
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 10)})
    lab.builder.begin_epoch("another", in_delta("made again", 6))
    lab.reopen()
    assert (lab.builder.queues, lab.stored()) == ({}, {})
    lab.builder.update_topics(topic("made again"), {})
    lab.builder.append({QUEUE: scan(0, 10)})
    assert lab.spans() == [(6, 10, 4)]


def test_a_restored_store_writes_no_row_twice_of_a_deleted_topic(lab: Lab) -> None:
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 10)})
    lab.builder.begin_epoch("another", UnitsInDelta({(*QUEUE, "id-1"): 7, (*QUEUE, "older"): 99}, {}))
    assert lab.spans() == [(7, 10, 3)]


class Job:
    """The kernel in memory, and a sender that serves it."""

    def __init__(self, lab: Lab) -> None:
        self.memory = MemoryJob()
        self.transport = self.memory.transport()
        self.sender = DispatchSender(self.transport, lab.outbox, lambda queue: declared(lab, queue))
        self.sender.start()

    def position(self) -> int | None:
        command = Pop(v=1, topic=TOPIC, queue_id=0, group="g", max_messages=100, invisible_time_ms=60_000)
        answer = self.transport.request(command)
        return None if answer.code == 17 else sum(run.last - run.first + 1 for run in answer.messages)

    def close(self) -> None:
        self.sender.stop()
        self.transport.close()


def declared(lab: Lab, queue: QueueName) -> Declare | None:
    record = lab.builder.queues.get(queue)
    return None if record is None else declare_of(queue, record)


@pytest.fixture
def job(lab: Lab) -> Iterator[Job]:
    made = Job(lab)
    yield made
    made.close()


def settled(lab: Lab, job: Job) -> None:
    wait_for(lambda: not job.sender.open_count)
    assert not list(lab.outbox.undelivered(EntryKind.DISPATCH))


def commands(job: Job) -> list[Any]:
    return [record for record in job.memory.records if isinstance(record, Declare | Dispatch)]


def test_a_sender_runs_no_thread_before_its_start_and_can_be_stopped_without_it(lab: Lab) -> None:
    with MemoryJob().transport() as transport, leaves_no_thread():
        sender = DispatchSender(transport, lab.outbox, lambda queue: declared(lab, queue))
        sender.stop()


def test_built_messages_can_be_popped(lab: Lab, job: Job) -> None:
    job.sender.send(lab.builder.update_topics(topic(), {}))
    entries = lab.builder.append({QUEUE: scan(0, 10, 0, 1, 2, 7)})
    job.sender.send([entry for entry in entries if entry.kind == EntryKind.DISPATCH])
    settled(lab, job)
    assert job.position() == 4


def test_dispatches_of_a_killed_builder_are_sent_by_the_next_one(lab: Lab, job: Job) -> None:
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 10)})
    lab.reopen()
    job.sender._outbox = lab.outbox
    job.sender.send(lab.outbox.undelivered(EntryKind.DISPATCH))
    settled(lab, job)
    assert job.position() == 10


def test_what_was_signed_with_a_former_key_is_sent_again_with_another_signature(lab: Lab, job: Job) -> None:
    transport, refused = job.transport, list[Any]()

    class OfARotation:
        def submit(self, command: Any) -> Future[Answer]:
            if len(refused) > 1:
                return transport.submit(command)
            refused.append(command)
            answered: Future[Answer] = Future()
            fields = {"topic": command.topic, "queue_id": command.queue_id, "now_ms": 1, "applied": False}
            answered.set_result(Answer(op_id="x", type="dispatch", code=16, reason=Reason.NO_PERMISSION, **fields))
            return answered

    job.sender._transport = OfARotation()  # type: ignore[assignment]
    job.sender.send(lab.builder.update_topics(topic(), {}))
    job.sender.send([e for e in lab.builder.append({QUEUE: scan(0, 10)}) if e.kind == EntryKind.DISPATCH])
    settled(lab, job)
    assert (job.position(), len(refused), job.sender.refused) == (10, 2, {})


def test_a_sender_that_waits_for_kafka_keeps_nobody_from_asking_it_or_stopping_it(lab: Lab, job: Job) -> None:
    waits, may_send = threading.Event(), threading.Event()
    transport = job.transport

    class WithoutRoom:
        def submit(self, command: Any) -> Future[Answer]:
            waits.set()
            assert may_send.wait(60)
            return transport.submit(command)

    job.sender._transport = WithoutRoom()  # type: ignore[assignment]
    entries = lab.builder.update_topics(topic(), {})
    sending = threading.Thread(target=job.sender.send, args=(entries,))
    sending.start()
    assert waits.wait(60)
    assert job.sender.wait_for_room(60)
    job.sender.stop()
    assert sending.is_alive()
    may_send.set()
    sending.join()
    wait_for(lambda: not job.sender.open_count)


def test_a_queue_that_the_job_does_not_know_is_declared(lab: Lab, job: Job) -> None:
    """Its declaration was answered long ago, and the job has lost it since."""
    lab.outbox.delivered([entry.key for entry in lab.builder.update_topics(topic(), {})])
    entries = lab.builder.append({QUEUE: scan(0, 10)})
    job.sender.send([entry for entry in entries if entry.kind == EntryKind.DISPATCH])
    settled(lab, job)
    assert [type(command) for command in commands(job)] == [Dispatch, Declare, Dispatch]
    assert job.position() == 10


def test_offsets_that_left_the_log_before_they_were_dispatched_are_skipped(lab: Lab, job: Job) -> None:
    """The queue was declared before there was a builder, and its first offsets were never dispatched."""
    job.memory.send(Declare(v=1, topic=TOPIC, queue_id=0, topic_id="id-1"))
    job.memory.send(Dispatch(v=1, topic=TOPIC, queue_id=0, ranges=[WrittenRange(0, 2)]))
    job.sender.send(lab.builder.update_topics(topic(start=10), {}))
    entries = lab.builder.append({QUEUE: scan(10, 15)})
    job.sender.send([entry for entry in entries if entry.kind == EntryKind.DISPATCH])
    settled(lab, job)
    assert job.position() == 3 + 5


def test_a_dispatch_of_an_earlier_topic_is_refused_by_the_queue(lab: Lab, job: Job) -> None:
    """It was in flight when the topic was recreated: its holes must not become holes of the new one."""
    lab.builder.update_topics(topic(), {})
    late = [entry for entry in lab.builder.append({QUEUE: nothing(0, 10)}) if entry.kind == EntryKind.DISPATCH]
    job.sender.send(lab.builder.update_topics(topic("id-2"), {}))
    job.sender.send(late)
    entries = lab.builder.append({QUEUE: scan(0, 10)})
    job.sender.send([entry for entry in entries if entry.kind == EntryKind.DISPATCH])
    wait_for(lambda: not job.sender.open_count)
    assert job.position() == 10


def test_a_dispatch_ahead_of_the_window_is_retried(lab: Lab, job: Job) -> None:
    """The window has its minimum size, and a gap at its start that another builder fills later."""
    job.sender.send(lab.builder.update_topics(topic(), {}))
    settled(lab, job)
    job.memory.send(Policy(v=1, topic=TOPIC, queue_id=0, window_max=1_000_000))
    lab.builder.append({QUEUE: nothing(0, 1_000_000)})
    entries = lab.builder.append({QUEUE: scan(1_000_000, 1_000_010)})
    job.sender.send([entry for entry in entries if entry.kind == EntryKind.DISPATCH])
    wait_for(lambda: len(commands(job)) > 2)
    assert job.sender.open_count == 1
    job.memory.send(Dispatch(v=1, topic=TOPIC, queue_id=0, skip=[(0, 999_999)]))
    wait_for(lambda: not job.sender.open_count)
    assert job.position() == 10


def test_the_rest_of_a_range_is_dispatched_when_its_start_has_left_the_log(lab: Lab, job: Job) -> None:
    """The dispatch arrives after the skip that follows it, as when its first attempt got no answer."""
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 10)})
    lab.builder.update_topics(topic(start=4), {})
    declare, dispatch, skip = lab.outbox.undelivered(EntryKind.DISPATCH)
    for entry in (declare, skip, dispatch):
        job.sender.send([entry])
        wait_for(lambda: not job.sender.open_count)
    assert job.position() == 6


def test_a_declaration_supersedes_operations_of_the_earlier_topic(lab: Lab, job: Job) -> None:
    """Offsets of a deleted topic must not reach the queue of the same name."""
    lab.builder.update_topics(topic(), {})
    lab.builder.append({QUEUE: scan(0, 10)})
    lab.builder.update_topics(topic("id-2"), {})
    lab.reopen()
    job.sender._outbox = lab.outbox
    job.sender.send(lab.outbox.undelivered(EntryKind.DISPATCH))
    settled(lab, job)
    assert [command.topic_id for command in commands(job)] == ["id-2"]
    assert job.position() == 0


def test_a_permanent_refusal_is_reported_and_stops_nothing(lab: Lab, job: Job) -> None:
    """Another builder has declared the queue with another type."""
    job.memory.send(Declare(v=1, topic=TOPIC, queue_id=0, topic_id="id-1", queue_type="sparse"))
    job.sender.send(lab.builder.update_topics(topic(), {}))
    entries = lab.builder.append({QUEUE: scan(0, 10)})
    job.sender.send([entry for entry in entries if entry.kind == EntryKind.DISPATCH])
    settled(lab, job)
    assert job.sender.refused == {QUEUE: "declare: INVALID_PARAMETER"}
    assert job.position() == 10


def test_open_operations_stay_in_the_outbox_when_the_transport_is_closed(lab: Lab, job: Job) -> None:
    job.transport.close()
    job.sender.send(lab.builder.update_topics(topic(), {}))
    assert len(list(lab.outbox.undelivered(EntryKind.DISPATCH))) == 1
    assert isinstance(job.transport, Transport)
