"""Claim: each call gets what its queue has, at its own deadline, and what several want is read once.

Method: the bookkeeping against a log made up at random; the fetcher against a scripted KafkaConsumer that behaves like
kafka-python's where it matters: one error ends a poll, and does not always tell which partition it is about.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import (
    CorruptRecordError,
    KafkaConnectionError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)

from popstream.errors import ClientClosed
from popstream.payload import partition_reader, read_planner
from popstream.payload.block_cache import BlockCache
from popstream.payload.fetch_progress import FetchProgress
from popstream.payload.kafka_payloads import KafkaPayloads
from popstream.payload.payload_block import PayloadBlock
from popstream.payload.payloads import FetchCounts, Fetched, Payload
from popstream.payload.read_planner import ReadPlanner
from popstream.payload.shared_payloads import shared_payloads
from popstream.settings import ClientSettings
from popstream.testing.memory_job import MemoryJob
from popstream.wire.base_errors import Corrupt, Invalid, Unavailable

SETTINGS = ClientSettings(bootstrap_servers="kafka:1,kafka:2", client_id="c")
LONG_S = 600.0
QUEUE = ("orders", 0)


def payload(size_bytes: int = 1) -> Payload:
    return Payload(None, b"x" * size_bytes, [], 0)


def block(first: int, end: int, *offsets: int, size_bytes: int = 1) -> PayloadBlock:
    return PayloadBlock(first, end, [(offset, payload(size_bytes)) for offset in offsets])


def offsets_of(ranges: list[tuple[int, int]]) -> list[int]:
    return [offset for first, last in ranges for offset in range(first, last + 1)]


# --- bookkeeping ---


@given(
    sizes=st.lists(st.none() | st.integers(0, 9), max_size=40),
    cuts=st.sets(st.integers(0, 40)),
    ranges=st.lists(st.tuples(st.integers(0, 45), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair)))),
    bytes_max=st.none() | st.integers(0, 40),
    count_max=st.none() | st.integers(1, 10),
)
def test_every_offset_is_decided_once_in_ascending_order(
    sizes: list[int | None],
    cuts: set[int],
    ranges: list[tuple[int, int]],
    bytes_max: int | None,
    count_max: int | None,
) -> None:
    wanted = FetchProgress(ranges, bytes_max=bytes_max, count_max=count_max)
    log = {offset: size for offset, size in enumerate(sizes) if size is not None}
    edges = sorted({0, len(sizes), *(cut for cut in cuts if cut < len(sizes))})
    for first, end in pairwise(edges):
        wanted.take(
            PayloadBlock(first, end, [(offset, payload(log[offset])) for offset in range(first, end) if offset in log])
        )
    result = wanted.result()
    found, gone, late, left = [*result.payloads], *(offsets_of(r) for r in (result.gone, result.late, result.left))
    assert sorted([*found, *gone, *late, *left]) == sorted(set(offsets_of(ranges)))
    assert set(found) <= set(log)
    assert not set(gone) & set(log)
    assert all(offset < len(sizes) for offset in gone)
    assert all(offset >= len(sizes) for offset in late)
    brought_bytes = sum(log[offset] for offset in found)
    assert len(found) <= (count_max or len(found))
    assert bytes_max is None or brought_bytes <= bytes_max or len(found) == 1
    if left:
        assert not late
        assert min(left) > max([*found, *gone])
        fits = bytes_max is None or brought_bytes + log.get(min(left), 0) <= bytes_max
        assert not fits or brought_bytes == bytes_max or len(found) == count_max


def test_the_first_payload_comes_however_large_it_is() -> None:
    wanted = FetchProgress([(0, 3)], bytes_max=10)
    wanted.take(block(0, 3, 1, 2, size_bytes=50))
    assert wanted.next_offset is None
    result = wanted.result()
    assert ([*result.payloads], result.gone, result.late, result.left) == ([1], [(0, 0)], [], [(2, 3)])


def test_a_gap_over_several_blocks_is_one_range() -> None:
    wanted = FetchProgress([(2, 8), (20, 20)])
    for piece in (block(0, 4, 0), block(4, 6), block(6, 30, 8)):
        wanted.take(piece)
    assert wanted.result() == Fetched({8: payload()}, [(2, 7), (20, 20)], [])


def test_what_is_not_used_is_forgotten_first() -> None:
    one_bytes = block(0, 1, 0, size_bytes=300_000).size_bytes
    cache = BlockCache(3 * one_bytes, age_s_max=10)
    for first in (0, 10, 20):
        cache.add(QUEUE, block(first, first + 1, first, size_bytes=300_000), now_s=0)
    cache.serve(QUEUE, FetchProgress([(0, 0)]), now_s=1)
    cache.add(("orders", 1), block(0, 1, 0, size_bytes=300_000), now_s=1)
    cache.trim()
    assert cache.size_bytes == 3 * one_bytes
    served = {}
    for first in (0, 10, 20):
        wanted = FetchProgress([(first, first)])
        cache.serve(QUEUE, wanted, now_s=1)
        served[first] = wanted.next_offset is None
    assert served == {0: True, 10: False, 20: True}


def test_what_is_too_old_is_not_used_and_not_renewed_by_what_follows() -> None:
    cache = BlockCache(1_000_000, age_s_max=10)
    cache.add(QUEUE, block(0, 1, 0), now_s=0)
    cache.add(QUEUE, block(1, 2, 1), now_s=9)
    cache.add(QUEUE, block(2, 3, 2), now_s=11)
    wanted = FetchProgress([(2, 2)])
    cache.serve(QUEUE, wanted, now_s=12)
    assert wanted.next_offset is None
    for offset in (0, 1):
        wanted = FetchProgress([(offset, offset)])
        cache.serve(QUEUE, wanted, now_s=12)
        assert wanted.next_offset == offset


def test_records_that_come_one_by_one_are_kept_together_and_forgotten_whole() -> None:
    cache = BlockCache(100_000, age_s_max=10)
    for offset in range(1_000):
        cache.add(QUEUE, block(offset, offset + 1, offset), now_s=0)
        cache.trim()
    assert 0 < cache.size_bytes <= 100_000
    cache.clear()
    assert cache.size_bytes == 0


def test_calls_that_wait_are_served_by_what_is_read_for_any_of_them() -> None:
    planner = ReadPlanner[FetchProgress](BlockCache(1_000_000, age_s_max=10))
    one, two, far = FetchProgress([(0, 5)]), FetchProgress([(3, 9)]), FetchProgress([(50, 50)])
    assert not any(planner.add(QUEUE, wanted, now_s=0) for wanted in (far, two, one))
    assert planner.targets(now_s=0) == {QUEUE: 0}
    assert planner.serve({QUEUE: block(0, 8, *range(8))}, now_s=0) == [one]
    assert planner.targets(now_s=0) == {QUEUE: 8}
    assert planner.serve({QUEUE: block(8, 12, *range(8, 12))}, now_s=0) == [two]
    assert [*two.result().payloads] == [*range(3, 10)]
    assert planner.targets(now_s=0) == {QUEUE: 50}
    again = FetchProgress([(4, 11)])
    assert planner.add(QUEUE, again, now_s=0)
    planner.withdraw(QUEUE, far)
    assert not planner


def test_an_offset_that_does_not_come_lets_the_others_of_its_queue_go_first() -> None:
    planner = ReadPlanner[FetchProgress](BlockCache(1_000_000, age_s_max=10))
    planner.add(QUEUE, FetchProgress([(9, 9)]), now_s=0)
    assert planner.targets(now_s=0.1) == {QUEUE: 9}
    planner.add(QUEUE, FetchProgress([(2, 2)]), now_s=0.1)
    assert planner.targets(now_s=0.2) == {QUEUE: 9}
    assert planner.targets(now_s=1.0) == {QUEUE: 2}
    assert planner.targets(now_s=1.1) == {QUEUE: 2}
    assert planner.targets(now_s=2.0) == {QUEUE: 9}


def test_after_an_error_of_nobody_knows_which_queue_each_is_read_alone() -> None:
    planner = ReadPlanner[FetchProgress](BlockCache(1_000_000, age_s_max=10))
    calls = {queue_id: FetchProgress([(0, 0)]) for queue_id in range(4)}
    for queue_id, wanted in calls.items():
        planner.add(("t", queue_id), wanted, now_s=0)
    assert planner.fail(planner.targets(now_s=0), now_s=0) == []
    assert planner.targets(now_s=0) == {("t", 0): 0}
    planner.serve({("t", 0): block(0, 1, 0)}, now_s=0)
    assert planner.targets(now_s=0) == {("t", 1): 0}
    assert planner.fail({("t", 1): 0}, now_s=0) == [calls[1]]
    assert planner.targets(now_s=0) == {("t", 2): 0}
    # It does not come, so that it is the next one's turn.
    assert planner.targets(now_s=1) == {("t", 3): 0}
    assert planner.targets(now_s=2) == {("t", 2): 0, ("t", 3): 0}
    assert planner.fail_all() == [calls[2], calls[3]]
    assert not planner


# --- the fetcher, with a scripted consumer ---


class Log:
    """One partition: what is readable of it, and what its records are."""

    def __init__(self, end: int = 0, start: int = 0) -> None:
        self.start, self.end = start, end
        self.missing: set[int] = set()
        self.errors: dict[int, Exception] = {}


class Record:
    def __init__(self, offset: int) -> None:
        self.offset, self.key, self.value, self.headers, self.timestamp = offset, None, b"%d" % offset, (), 7


class ScriptedConsumer:
    """Gives records of `logs`, one partition a poll, as kafka-python's does while it unpacks one."""

    logs: ClassVar[dict[tuple[str, int], Log]]
    made: ClassVar[list[ScriptedConsumer]]
    gate: ClassVar[threading.Event]
    is_at_gate: ClassVar[threading.Event]
    connect_error: ClassVar[Exception | None]

    def __init__(self, **options: Any) -> None:
        if self.connect_error is not None:
            raise self.connect_error
        assert options["isolation_level"] == "read_committed"
        self._fetcher = SimpleNamespace(_next_partition_records=None, config={})
        self.positions: dict[TopicPartition, int | None] = {}
        self.paused: set[TopicPartition] = set()
        self.seeks: list[tuple[int, int]] = []
        self.given: list[int] = []
        self.is_closed = False
        self.made.append(self)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.positions = {partition: self.positions.get(partition) for partition in partitions}
        self.paused &= set(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert partition in self.positions
        self.positions[partition] = offset
        self.seeks.append((partition.partition, offset))

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused |= set(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused -= set(partitions)

    def position(self, partition: TopicPartition, timeout_ms: int) -> int | None:
        assert timeout_ms == 0
        return self.positions[partition]

    def beginning_offsets(self, partitions: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        assert timeout_ms
        return {partition: self.logs[partition].start for partition in partitions}

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Record]]:
        assert not self.is_closed
        self.is_at_gate.set()
        self.gate.wait()
        for partition, position in self.positions.items():
            assert position is not None
            if partition in self.paused:
                continue
            log = self.logs.get(partition, Log())
            if position in log.errors:
                raise log.errors[position]
            if not log.start <= position <= log.end:
                raise OffsetOutOfRangeError({partition: position})
            stop = min([log.end, position + max_records, *(at for at in log.errors if at > position)])
            if stop > position:
                self.positions[partition] = stop
                records = [Record(offset) for offset in range(position, stop) if offset not in log.missing]
                self.given += [record.offset for record in records]
                return {partition: records} if records else {}
        threading.Event().wait(min(timeout_ms, 1) / 1000)
        return {}

    def close(self, *, autocommit: bool) -> None:
        assert not autocommit
        self.is_closed = True


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], Log]:
    monkeypatch.setattr(partition_reader, "KafkaConsumer", ScriptedConsumer)
    ScriptedConsumer.logs, ScriptedConsumer.made, ScriptedConsumer.connect_error = {}, [], None
    ScriptedConsumer.gate = threading.Event()
    ScriptedConsumer.gate.set()
    ScriptedConsumer.is_at_gate = threading.Event()
    return ScriptedConsumer.logs


@pytest.fixture
def payloads(logs: dict[tuple[str, int], Log]) -> Iterator[KafkaPayloads]:
    assert not logs
    made = KafkaPayloads(SETTINGS)
    yield made
    ScriptedConsumer.gate.set()
    made.close()
    assert all(consumer.is_closed for consumer in ScriptedConsumer.made)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


def wait_until_asked(payloads: KafkaPayloads, queue: tuple[str, int], count: int) -> None:
    while True:
        with payloads._changed:
            if len(payloads._planner._waiting.get(queue, ())) == count:
                return
        time.sleep(0.001)


def test_two_threads_that_want_the_same_read_it_once(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads, pool: ThreadPoolExecutor
) -> None:
    logs[QUEUE], logs["orders", 1] = Log(200), Log(1)
    ScriptedConsumer.gate.clear()
    # The thread is in a poll for this one until all the others wait.
    first = pool.submit(payloads.fetch, "orders", 1, [(0, 0)], LONG_S)
    assert ScriptedConsumer.is_at_gate.wait(LONG_S)
    wanted = ([(40, 60)], [(0, 50)], [(45, 45), (0, 3)])
    futures = [pool.submit(payloads.fetch, *QUEUE, ranges, LONG_S) for ranges in wanted]
    wait_until_asked(payloads, QUEUE, 3)
    ScriptedConsumer.gate.set()
    found = [sorted(future.result().payloads) for future in (first, *futures)]
    assert found == [[0], [*range(40, 61)], [*range(51)], [0, 1, 2, 3, 45]]
    (consumer,) = ScriptedConsumer.made
    assert consumer.seeks == [(1, 0), (0, 0)]
    assert consumer.given[1:] == [*range(len(consumer.given) - 1)]
    assert payloads.counts().records_delivered == 1 + 21 + 51 + 5


def test_small_gaps_are_read_through_and_large_ones_skipped(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads
) -> None:
    logs[QUEUE] = Log(10_000)
    ranges = [(0, 3), (100, 101), (5_000, 5_001), (5_003, 5_003)]
    assert sorted(payloads.fetch(*QUEUE, ranges, LONG_S).payloads) == [0, 1, 2, 3, 100, 101, 5_000, 5_001, 5_003]
    (consumer,) = ScriptedConsumer.made
    assert consumer.seeks == [(0, 0), (0, 5_000)]
    before = len(consumer.given)
    # All of these were passed over, and are at hand.
    assert sorted(payloads.fetch(*QUEUE, [(4, 40), (5_002, 5_010)], LONG_S).payloads) == [
        *range(4, 41),
        *range(5_002, 5_011),
    ]
    assert len(consumer.given) == before
    counts = payloads.counts()
    assert (counts.records_read, counts.records_delivered) == (before, 9 + 37 + 9)
    assert counts.bytes_read >= counts.bytes_delivered > 0


def test_what_has_no_record_is_gone_and_what_does_not_come_is_late(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads
) -> None:
    logs[QUEUE] = log = Log(10, start=3)
    log.missing = {5, 6, 9}
    fetched = payloads.fetch(*QUEUE, [(0, 12)], 0.05)
    assert [*fetched.payloads] == [3, 4, 7, 8]
    assert (fetched.gone, fetched.late, fetched.left) == ([(0, 2), (5, 6), (9, 9)], [(10, 12)], [])
    assert payloads.fetch(*QUEUE, [(40, 41)], 0.05).late == [(40, 41)]
    log.end = 50
    assert sorted(payloads.fetch(*QUEUE, [(40, 41)], LONG_S).payloads) == [40, 41]


def test_a_log_that_does_not_tell_its_start_is_late(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object, **__: object) -> dict[TopicPartition, int]:
        raise KafkaTimeoutError

    logs[QUEUE] = Log(10, start=3)
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedConsumer, "beginning_offsets", no_answer)
        assert payloads.fetch(*QUEUE, [(0, 4)], 0.05).late == [(0, 4)]
    assert payloads.fetch(*QUEUE, [(0, 4)], LONG_S).gone == [(0, 2)]


def test_what_does_not_fit_is_left(logs: dict[tuple[str, int], Log], payloads: KafkaPayloads) -> None:
    logs[QUEUE] = Log(1_000)
    fetched = payloads.fetch(*QUEUE, [(0, 20), (900, 999)], LONG_S, bytes_max=12)
    assert ([*fetched.payloads], fetched.late, fetched.left) == ([*range(11)], [], [(11, 20), (900, 999)])
    assert [*payloads.fetch(*QUEUE, [(500, 999)], LONG_S, bytes_max=0).payloads] == [500]


def test_a_queue_that_cannot_be_read_holds_up_no_other(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads, pool: ThreadPoolExecutor
) -> None:
    logs["orders", 1] = Log(100)
    blocked = pool.submit(payloads.fetch, *QUEUE, [(0, 0)], LONG_S)
    wait_until_asked(payloads, QUEUE, 1)
    for first in range(0, 100, 10):
        assert len(payloads.fetch("orders", 1, [(first, first + 9)], LONG_S).payloads) == 10
    assert not blocked.done()
    logs[QUEUE] = Log(1)
    assert [*blocked.result().payloads] == [0]


def test_a_call_ends_at_its_deadline_whatever_the_thread_does(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads
) -> None:
    logs[QUEUE] = Log(10)
    ScriptedConsumer.gate.clear()
    assert payloads.fetch(*QUEUE, [(0, 4)], 0.05).late == [(0, 4)]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (CorruptRecordError("failed crc check"), Corrupt),
        (UnsupportedCodecError("zstd"), Corrupt),
        (EOFError("compressed file ended"), Corrupt),
        (TopicAuthorizationFailedError({"orders"}), Invalid),
        (KafkaTimeoutError("slow"), Unavailable),
    ],
)
def test_an_error_ends_the_calls_of_its_queue_only(
    logs: dict[tuple[str, int], Log],
    payloads: KafkaPayloads,
    pool: ThreadPoolExecutor,
    error: Exception,
    raised: type[Exception],
) -> None:
    for queue_id in range(4):
        logs["orders", queue_id] = Log(100)
    logs["orders", 1].errors = {50: error}
    ScriptedConsumer.gate.clear()
    futures = [pool.submit(payloads.fetch, "orders", queue_id, [(0, 99)], LONG_S) for queue_id in range(4)]
    for queue_id in range(4):
        wait_until_asked(payloads, ("orders", queue_id), 1)
    ScriptedConsumer.gate.set()
    with pytest.raises(raised, match=r"orders/1 cannot be read"):
        futures[1].result()
    assert [len(futures[queue_id].result().payloads) for queue_id in (0, 2, 3)] == [100] * 3
    # Around it the queue can be read, also by those who come from before it, or ask beside those who fail.
    assert len(payloads.fetch("orders", 1, [(0, 49)], LONG_S).payloads) == 50
    assert len(payloads.fetch("orders", 1, [(51, 99)], LONG_S).payloads) == 49
    ScriptedConsumer.gate.clear()
    wanted = ([(0, 49)], [(40, 60)], [(51, 99)], [(50, 50)])
    futures = [pool.submit(payloads.fetch, "orders", 1, ranges, LONG_S) for ranges in wanted]
    ScriptedConsumer.gate.set()
    assert [type(future.exception()) for future in futures] == [type(None), raised, type(None), raised]


def wait_until_nothing_is_read(payloads: KafkaPayloads) -> None:
    while True:
        with payloads._changed:
            if not payloads._planner:
                return
        time.sleep(0.001)


def test_what_is_expected_is_here_when_it_is_fetched(logs: dict[tuple[str, int], Log], payloads: KafkaPayloads) -> None:
    for queue_id in range(5):
        logs["orders", queue_id] = Log(100)
        payloads.expect("orders", queue_id, [(10, 19), (30, 39)])
    wait_until_nothing_is_read(payloads)
    ScriptedConsumer.gate.clear()  # nothing is read from now on
    for queue_id in range(5):
        assert len(payloads.fetch("orders", queue_id, [(10, 19), (30, 39)], 0.0).payloads) == 20
    payloads.expect("orders", 0, [(12, 15)])
    assert not payloads._planner, "what is here is not read again"


def test_what_is_expected_and_does_not_come_is_given_up(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_planner, "AHEAD_S", 0.02)
    logs[QUEUE] = Log(10)
    payloads.expect(*QUEUE, [(5, 14)])
    wait_until_nothing_is_read(payloads)
    assert not payloads._planner._turns
    assert payloads.fetch(*QUEUE, [(5, 14)], 0.05).late == [(10, 14)]


def test_when_nothing_is_wanted_any_more_the_connection_stays(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one queue that is read steadily, and whose last expected fetch does not come."""
    monkeypatch.setattr(read_planner, "AHEAD_S", 0.02)
    monkeypatch.setattr(partition_reader, "LATELY_S", 0.0)
    logs[QUEUE] = Log(10)
    for _ in range(3):
        payloads.expect(*QUEUE, [(9, 14)])
        wait_until_nothing_is_read(payloads)
    assert len(payloads.fetch(*QUEUE, [(5, 9)], LONG_S).payloads) == 5
    (consumer,) = ScriptedConsumer.made
    assert not consumer.is_closed


def test_an_error_in_reading_ahead_is_that_of_the_fetch(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads
) -> None:
    logs[QUEUE], logs["orders", 1] = Log(100), Log(100)
    logs["orders", 1].errors = {5: CorruptRecordError("failed crc check")}
    ScriptedConsumer.gate.clear()
    for queue_id in (0, 1):
        payloads.expect("orders", queue_id, [(0, 9)])
    ScriptedConsumer.gate.set()
    wait_until_nothing_is_read(payloads)
    assert len(payloads.fetch(*QUEUE, [(0, 9)], LONG_S).payloads) == 10
    with pytest.raises(Corrupt):
        payloads.fetch("orders", 1, [(0, 9)], LONG_S)


def test_close_does_not_wait_for_what_is_expected(logs: dict[tuple[str, int], Log]) -> None:
    logs[QUEUE] = Log(1)
    payloads = KafkaPayloads(SETTINGS)
    payloads.expect(*QUEUE, [(5, 9)])
    payloads.close()
    payloads.expect(*QUEUE, [(5, 9)])
    assert not payloads._planner
    assert all(consumer.is_closed for consumer in ScriptedConsumer.made)


def test_less_of_each_queue_is_fetched_at_once_the_more_there_are(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads
) -> None:
    sizes: list[int] = []
    for queue_id in range(300):
        logs["orders", queue_id] = Log(1)
        assert payloads.fetch("orders", queue_id, [(0, 0)], LONG_S).payloads
        sizes.append(ScriptedConsumer.made[0]._fetcher.config["max_partition_fetch_bytes"])
    assert (sizes[0], sizes[-1]) == (partition_reader.PARTITION_FETCH_BYTES, partition_reader.PARTITION_FETCH_BYTES_MIN)
    assert sizes == sorted(sizes, reverse=True)


def test_kafka_that_is_not_there_is_unavailable(logs: dict[tuple[str, int], Log], payloads: KafkaPayloads) -> None:
    logs[QUEUE] = Log(1)
    ScriptedConsumer.connect_error = KafkaConnectionError()
    with pytest.raises(Unavailable, match="KafkaConnectionError"):
        payloads.fetch(*QUEUE, [(0, 0)], LONG_S)
    ScriptedConsumer.connect_error = None
    assert [*payloads.fetch(*QUEUE, [(0, 0)], LONG_S).payloads] == [0]


def test_places_that_nobody_wants_are_given_up(logs: dict[tuple[str, int], Log], payloads: KafkaPayloads) -> None:
    for queue_id in range(100):
        logs["orders", queue_id] = Log(1)
        assert payloads.fetch("orders", queue_id, [(0, 0)], LONG_S).payloads
    payloads.fetch("orders", 100, [(0, 0)], 0.05)
    payloads.fetch("orders", 0, [(0, 0), (1, 1)], 0.05)
    (consumer,) = ScriptedConsumer.made
    assert len(consumer.positions) <= partition_reader.IDLE_MAX + 1
    assert TopicPartition("orders", 100) not in consumer.positions


def test_another_kafka_python_is_refused_by_its_version(
    monkeypatch: pytest.MonkeyPatch, logs: dict[tuple[str, int], Log]
) -> None:
    class OtherRelease(ScriptedConsumer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            del self._fetcher

    logs[QUEUE] = Log(end=1)
    monkeypatch.setattr(partition_reader, "KafkaConsumer", OtherRelease)
    payloads = KafkaPayloads(SETTINGS)
    with pytest.raises(Invalid, match=r"kafka-python 3\.0\.\d+ is not supported: OtherRelease has no _fetcher"):
        payloads.fetch(*QUEUE, [(0, 0)], timeout_s=10)
    payloads.close()


def test_a_closed_fetcher_refuses(logs: dict[tuple[str, int], Log]) -> None:
    logs[QUEUE] = Log(1)
    payloads = KafkaPayloads(SETTINGS)
    assert payloads.fetch(*QUEUE, [(0, 0)], LONG_S).payloads
    payloads.close()
    payloads.close()
    for call in (lambda: payloads.fetch(*QUEUE, [(0, 0)], 1), lambda: payloads.read(*QUEUE, 0, 1, 1)):
        with pytest.raises(ClientClosed, match="fetcher of c is closed"):
            call()


def test_close_lets_a_call_that_waits_end_first(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads, pool: ThreadPoolExecutor
) -> None:
    waiting = pool.submit(payloads.fetch, *QUEUE, [(0, 0)], LONG_S)
    wait_until_asked(payloads, QUEUE, 1)
    closing = pool.submit(payloads.close)
    while not payloads._is_closed:
        time.sleep(0.001)
    logs[QUEUE] = Log(1)
    assert waiting.result().payloads
    closing.result()


# --- one for a process ---


def test_users_of_one_kafka_share_a_fetcher_until_the_last_closes(logs: dict[tuple[str, int], Log]) -> None:
    logs[QUEUE] = Log(10)
    one = shared_payloads(SETTINGS)
    two = shared_payloads(ClientSettings(bootstrap_servers="kafka:2,kafka:1", client_id="other"))
    three = shared_payloads(
        ClientSettings(bootstrap_servers="kafka:1,kafka:2", client_id="c", kafka={"client_rack": "r"})
    )
    for share in (one, two, three):
        assert share.fetch(*QUEUE, [(0, 0)], LONG_S).payloads
    assert len(ScriptedConsumer.made) == 2
    assert one.counts() == two.counts()
    assert two.counts().records_delivered == 2
    one.close()
    one.close()
    with pytest.raises(ClientClosed):
        one.fetch(*QUEUE, [(0, 0)], LONG_S)
    assert two.fetch(*QUEUE, [(1, 1)], LONG_S).payloads
    assert [consumer.is_closed for consumer in ScriptedConsumer.made] == [False, False]
    two.close()
    assert [consumer.is_closed for consumer in ScriptedConsumer.made] == [True, False]
    three.close()
    again = shared_payloads(SETTINGS)
    assert again.counts() == FetchCounts()
    again.close()


def test_a_child_process_gets_a_fetcher_of_its_own(logs: dict[tuple[str, int], Log]) -> None:
    logs[QUEUE] = Log(10)
    share = shared_payloads(SETTINGS)
    assert share.fetch(*QUEUE, [(0, 0)], LONG_S).payloads
    child = os.fork()
    if not child:
        code = 1
        try:
            found = share.fetch(*QUEUE, [(0, 4)], LONG_S).payloads
            parents, own = ScriptedConsumer.made
            share.close()
            code = 0 if len(found) == 5 and own.is_closed and not parents.is_closed else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(share.fetch(*QUEUE, [(0, 9)], LONG_S).payloads) == 10
    assert len(ScriptedConsumer.made) == 1
    share.close()


# --- in memory ---


def test_the_job_in_memory_gives_payloads_likewise() -> None:
    job = MemoryJob()
    job.write("orders", 0, [b"%d" % number for number in range(10)])
    job.payloads.deleted, job.payloads.late = {("orders", 0, 1)}, {("orders", 0, 8)}
    fetched = job.payloads.fetch("orders", 0, [(4, 9), (0, 2)], 1, bytes_max=3)
    assert ([*fetched.payloads], fetched.gone, fetched.late, fetched.left) == ([0, 2, 4], [(1, 1)], [], [(5, 9)])
    fetched = job.payloads.fetch("orders", 0, [(7, 9)], 1)
    assert ([*fetched.payloads], fetched.late, fetched.left) == ([7, 9], [(8, 8)], [])
    assert [offset for offset, _ in job.payloads.read("orders", 0, 0, 3, 1)] == [0, 2, 3]
    assert [offset for offset, _ in job.payloads.read("orders", 0, 5, 9, 1)] == [5, 6, 7]
    assert job.payloads.read("orders", 0, 10, 9, 1) == []
    assert job.payloads.counts().records_delivered == 3 + 2 + 3 + 3
    with pytest.raises(Invalid, match="orders/7 does not exist"):
        job.payloads.read("orders", 7, 0, 1, 1)


def test_an_error_of_the_fetcher_itself_ends_the_calls_and_not_the_fetcher(
    logs: dict[tuple[str, int], Log], payloads: KafkaPayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs[QUEUE] = Log(1)
    with monkeypatch.context() as patched:
        patched.setattr(payloads._planner, "targets", lambda _now_s: 1 / 0)
        with pytest.raises(Corrupt, match="ZeroDivisionError"):
            payloads.fetch(*QUEUE, [(0, 0)], LONG_S)
    assert [*payloads.fetch(*QUEUE, [(0, 0)], LONG_S).payloads] == [0]
