"""Claim: state, answers and rows are functions of the log alone, and no value of the state exceeds 4 KiB.

Method: generated logs (tests/model/generator.py) are decided in one micro-batch, in random ones, record by record,
with an overlay that keeps nothing, on disk, and in processes with another hash seed and a clock an hour off; all must
leave the same bytes. Histories made to hurt are held to the size limits as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker_state.kernel import ack_change_reject
from broker_state.kernel.context import op_context
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.lone_ack import decide_lone_ack
from broker_state.store.facts import Delivery, DeliveryState, UnitFacts
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import CACHE_BYTES, OPS, STATE
from broker_state.store.pages import DeliveryPage, UnitFactsPage
from broker_state.store.rocks_store import RocksStore
from pipelines.decide_ops.decode import KafkaRecord
from pipelines.decide_ops.entry import ENTRY_BYTES_MAX
from popstream.exchange.partitioner import ops_key
from popstream.wire.command import Ack
from tests.support.in_process.folding import KERNEL_FAMILIES, Folded, Folding, random_cuts, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker_state.audit import OperationRow
    from tests.model.reference_model import Record

ROOT = Path(__file__).parents[2]
FIRST_SEED = 2  # the logs of the ones before end with nothing in flight
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("TEST_CUT_SEEDS", "2")))
RECORDS = 500
VALUE_BYTES_MAX = 4096
U64_MAX = 2**64 - 1
MS = 1_790_000_000_000

OTHER_PROCESS = """
import sys, time
real = time.time
time.time = lambda: real() + float(sys.argv[1])
time.time_ns = lambda: int(time.time() * 1e9)
from tests.property.test_cuts import fold_in_memory, one_digest
for seed in map(int, sys.argv[2:]):
    print(one_digest(*fold_in_memory(seed, "one batch")))
"""

Bytes = dict[str, dict[bytes, bytes]]


def fold_in_memory(seed: int, how: str) -> tuple[Bytes, Folded]:
    """The whole log of a seed over a store in memory: what is in its families, and what came out."""
    records = records_of(seed, RECORDS)
    kv = MemoryKv()
    folded = Folding(kv, cache_bytes={"no cache": 0, "small cache": 5_000}.get(how, CACHE_BYTES)).decide_all(
        records, cuts_of(records, seed, how)
    )
    return {family: dict(kv.families.get(family, {})) for family in KERNEL_FAMILIES}, folded


def cuts_of(records: Sequence[Record], seed: int, how: str) -> Sequence[int]:
    match how:
        case "one batch":
            return []
        case "each alone":
            return range(1, len(records))
        case "no cache" | "small cache":
            return range(3, len(records), 3)
        case _:
            return random_cuts(records, seed)


@lru_cache(maxsize=len(SEEDS))
def reference(seed: int) -> tuple[Bytes, Folded]:
    return fold_in_memory(seed, "one batch")


def one_digest(families: Bytes, folded: Folded) -> str:
    state = hashlib.sha256(repr([sorted(families[name].items()) for name in KERNEL_FAMILIES]).encode()).hexdigest()
    return f"{state} {folded.digest()}"


def differences(one: Bytes, other: Bytes) -> list[str]:
    """Every key with different bytes, readable enough to find out why."""
    return [
        f"{family} {key!r}: {one[family].get(key)!r} != {other[family].get(key)!r}"
        for family in KERNEL_FAMILIES
        for key in sorted(one[family].keys() | other[family].keys())
        if one[family].get(key) != other[family].get(key)
    ]


def assert_same(seed: int, families: Bytes, folded: Folded) -> None:
    wanted, wanted_folded = reference(seed)
    assert differences(wanted, families) == []
    assert folded.answers == wanted_folded.answers
    assert folded.rows == wanted_folded.rows
    assert folded.notifications == wanted_folded.notifications
    assert folded.dead_letters == wanted_folded.dead_letters


def assert_small(families: Bytes, folded: Folded) -> None:
    for family in (STATE, OPS):
        key, value = max(families[family].items(), key=lambda item: len(item[1]), default=(b"", b""))
        assert len(value) <= VALUE_BYTES_MAX, f"{family} {key!r} has {len(value)} bytes"
    assert folded.largest_entry <= ENTRY_BYTES_MAX


@pytest.mark.pure
@pytest.mark.parametrize("seed", SEEDS)
def test_where_a_record_has_done_enough_does_not_depend_on_what_is_cached(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op_context, "WORK_MAX", 40)
    families, folded = fold_in_memory(seed, "one batch")
    for how in ("each alone", "no cache"):
        families_again, again = fold_in_memory(seed, how)
        assert differences(families, families_again) == []
        assert (again.answers, again.rows) == (folded.answers, folded.rows)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["each alone", "random cuts", "no cache", "small cache"])
def test_any_cut_gives_the_same_bytes(seed: int, how: str) -> None:
    families, folded = fold_in_memory(seed, how)
    assert_same(seed, families, folded)
    assert_small(families, folded)


def test_the_logs_are_worth_it() -> None:
    """They lease, expire, ack, change, park and refuse; most of them end with something in flight."""
    steps = {row.step for seed in SEEDS for row in reference(seed)[1].rows["deliveries"]}
    assert {"leased", "acked", "changed", "expired", "released", "dead_lettered", "expired_from_log"} <= steps
    assert sum(bool(reference(seed)[0]["deadlines"]) for seed in SEEDS) >= len(SEEDS) // 2
    assert all(len(reference(seed)[1].answers) > RECORDS // 3 for seed in SEEDS)


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_disk_and_memory_hold_the_same_bytes(seed: int, tmp_path: Path) -> None:
    """Also when the store is closed and opened again in the middle, with a new overlay."""
    records = records_of(seed, RECORDS)
    half = len(records) // 2
    with RocksStore(tmp_path) as store:
        first = Folding(store).decide_all(records[:half], random_cuts(records[:half], seed + 100))
    with RocksStore(tmp_path) as store:
        second = Folding(store).decide_all(records[half:], random_cuts(records[half:], seed + 200))
        on_disk = {family: dict(store.scan(family, b"")) for family in KERNEL_FAMILIES}
    wanted, wanted_folded = reference(seed)
    assert differences(wanted, on_disk) == []
    assert first.answers + second.answers == wanted_folded.answers
    assert {name: first.rows[name] + second.rows[name] for name in first.rows} == wanted_folded.rows


@pytest.mark.parametrize(("hash_seed", "clock_s"), [("1", "0"), ("4242", "3600"), ("77", "-3600")])
def test_another_process_with_another_hash_seed_and_clock(hash_seed: str, clock_s: str) -> None:
    """The kernel asks neither for the time nor for the order of a set."""
    seeds = [str(seed) for seed in SEEDS[:4]]
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, clock_s, *seeds],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
        },
        timeout=120,
    )
    assert done.stdout.splitlines() == [one_digest(*reference(int(seed))) for seed in seeds]


# ------------------------------------------------------------------------------------------- made to be large


class Queue:
    """One queue of a kernel, fed with what is hard to store; answers as plain JSON."""

    def __init__(self, topic: str = "t" * 249, queue_id: int = 2**31 - 1) -> None:
        self.kv = MemoryKv()
        self.topic, self.queue_id = topic, queue_id
        self.records: list[KafkaRecord] = []
        self._folding = Folding(self.kv, partitions=1)
        self._number = 0
        self.now_ms = MS
        self.operation_rows: Sequence[OperationRow] = []
        """Those of the last operation."""
        self.send("declare", topic_id="i" * 255)

    def send(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """Decide one operation in a micro-batch of its own, check every size, give the answers."""
        self._number += 1
        op = {"op_id": f"{self._number:0>128}", "reply_to": 0, **fields}
        value = json.dumps({"v": 1, "type": kind, "topic": self.topic, "queue_id": self.queue_id, **op}).encode()
        key = ops_key(self.topic, self.queue_id)
        record = KafkaRecord(0, self._number, self.now_ms, key, value, len(value))
        self.records.append(record)
        decision = self._folding.decide([record])
        families = {family: self.kv.families.get(family, {}) for family in KERNEL_FAMILIES}
        assert_small(families, self._folding.folded)
        self.operation_rows = decision.operations
        return [json.loads(answer) for _, answer in decision.answers]


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_page_of_64_leases_by_64_clients_with_large_numbers(queue: Queue) -> None:
    """Every message in a lease of its own, by a client of its own, each changed apart, with long names throughout."""
    group = "g" * 255
    queue.send("dispatch", ranges=[{"first": n, "last": n, "tag": U64_MAX - n, "count": 1 + n % 2} for n in range(128)])
    for number in range(64):
        queue.now_ms += 1
        answer = queue.send(
            "pop", group=group, max_messages=1, invisible_time_ms=43_200_000 - number, client_id=f"{number:0>255}"
        )[-1]
        assert answer["messages"] == [[number, number, 1]]
        for _ in range(2):
            entry = {"handle": 0, "offsets": [[number, number]], "invisible_time_ms": 43_199_999 - number}
            handles = [{"group": group, "handle": answer["handle"]}]
            changed = queue.send("change_invisible", handles=handles, entries=[entry])[-1]
            assert changed["applied"]
            answer["handle"] = changed["handles"][0]


@pytest.mark.parametrize("clients", [0, 64])
def test_page_of_the_largest_numbers_that_can_be(clients: int) -> None:
    """What no history of a test reaches: the generation in the high bits of the epoch, years of attempts."""
    far = 1 << 42
    runs = [
        (
            n,
            n + 1,
            Delivery(
                U64_MAX - n, (1 << 32) - 1, far + n, far - n, 43_200_000 - n, U64_MAX - n, (1 << 32) - 1, 1, n % 2 == 0
            ),
        )
        for n in range(64)
    ]
    page = DeliveryPage(0, far, [U64_MAX - n for n in range(clients)], runs)
    page = DeliveryPage.decode(page.encode())
    assert page.runs == runs
    assert page.runs[0][2].state == DeliveryState.BACKING_OFF
    assert len(page.encode()) <= VALUE_BYTES_MAX


def test_unit_facts_page_of_the_largest_numbers() -> None:
    runs = [(n, n + 1, UnitFacts(U64_MAX - n, 2**31 - 1 - n)) for n in range(64)]
    page = UnitFactsPage(
        2**57 - 1, [(first + (2**57 - 1) * 64, end + (2**57 - 1) * 64, facts) for first, end, facts in runs]
    )
    assert UnitFactsPage.decode(page.encode()).runs == page.runs
    assert len(page.encode()) <= VALUE_BYTES_MAX


def test_ten_thousand_scattered_acks_in_one_operation(queue: Queue) -> None:
    """Every other message of 20,000, in random order: an answer far beyond a value and a frame, given again whole."""
    queue.send("dispatch", ranges=[{"first": 0, "last": 19_999}])
    handles = []
    for _ in range(2):
        answer = queue.send("pop", group="g", max_messages=10_000, invisible_time_ms=60_000)[-1]
        handles.append({"group": "g", "handle": answer["handle"]})
    offsets = [n * 2 for n in range(10_000)]
    random.Random(5).shuffle(offsets)
    entries = [{"handle": index, "offsets": [[n, n] for n in offsets if n // 10_000 == index]} for index in (0, 1)]
    op = {"op_id": "large", "handles": handles, "entries": entries}
    (answer,) = queue.send("ack", **op)
    assert answer["applied"]
    assert sum(run["last"] - run["first"] + 1 for run in answer["runs"] if run["reason"] == "OK") == 10_000
    assert answer["commit_offsets"] == {"g": 1}
    assert queue.send("ack", **op) == [answer]


def test_scattered_dispatches_and_holes(queue: Queue) -> None:
    """2,000 single offsets beyond the commit position, every one a segment or a page away from the next."""
    chance = random.Random(7)
    offsets = chance.sample(range(1, 1_000_000), 2_000)
    for first in range(0, 2_000, 250):
        some = offsets[first : first + 250]
        ranges = [{"first": n, "last": n, "tag": U64_MAX - n, "count": 2} for n in some[::2]]
        (answer,) = queue.send("dispatch", ranges=ranges, skip=[[n, n] for n in some[1::2]])
        assert answer["applied"]
        assert answer["commit_position"] == 0


def test_parked_pops_and_policies_with_everything_long(queue: Queue) -> None:
    back_off_ms = [43_200_000 - n for n in range(32)]
    queue.send("policy", back_off_ms=back_off_ms, window_max=2**30)
    queue.send("policy", group="g" * 255, back_off_ms=back_off_ms, in_flight_max=2**31 - 1, parked_max=8_192)
    for number in range(40):
        pop = {"max_messages": 10_000, "invisible_time_ms": 43_200_000, "poll_time_ms": 43_200_000}
        tags = [U64_MAX - n for n in range(64)]
        names = {"group": "g" * 255, "client_id": f"{number:c>255}", "attempt_id": "a" * 255}
        assert queue.send("pop", **pop, **names, tags=tags) == []
    cancelled = queue.send("forget_lane", group="g" * 255)
    assert [answer["reason"] for answer in cancelled].count("CANCELLED") == 40


def invalid_operations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Operations of which one text is much too long; none of them may be stored or answered whole."""
    for text in ("é" * 100_000, "\U0001f600" * 60_000):
        pop = {"group": "g", "max_messages": 1, "invisible_time_ms": 5}
        for name in ("group", "client_id", "attempt_id"):
            yield "pop", {**pop, name: text}
        for kind in ("return_client", "reset_offset", "forget_lane", "policy", "redrive"):
            fields: dict[str, Any] = {"group": text}
            if kind == "return_client":
                fields["client_id"] = "c"
            elif kind == "reset_offset":
                fields["queue_offset"] = 1
            elif kind == "redrive":
                fields |= {"offsets": [[0, 1]], "to": "group"}
            yield kind, fields
        yield "return_client", {"group": "g", "client_id": text}
        yield "cancel", {"target_op_id": text}
        yield "tick", {"op_id": text}
        yield "declare", {"topic_id": text}
        for kind in ("ack", "reject", "change_invisible"):
            entry: dict[str, Any] = {"handle": 0, "offsets": [[0, 1]]}
            if kind == "change_invisible":
                entry["invisible_time_ms"] = 5
            for refs in ({"group": text, "handle": "1.x"}, {"group": "g", "handle": text}):
                yield kind, {"handles": [refs], "entries": [entry]}
            yield kind, {"handles": [{"group": "g", "handle": "1.x"}], "entries": [entry], "client_id": text}
            yield kind, {"handles": [{"group": "g", "handle": "1.x"}], "entries": [{**entry, "cause": text}]}
        yield "ack" + text, {"handles": [], "entries": []}


@pytest.mark.parametrize("number", range(len(list(invalid_operations()))))
def test_texts_without_end_are_neither_stored_nor_answered(number: int, queue: Queue) -> None:
    kind, fields = list(invalid_operations())[number]
    queue.send("dispatch", ranges=[{"first": 0, "last": 9}])
    answers = queue.send(kind, **fields)
    for answer in answers:
        assert not answer["applied"]
        assert len(json.dumps(answer, ensure_ascii=False).encode()) < 16 * 1024


def test_the_rows_of_a_redrive_have_the_beginning_of_what_it_says(queue: Queue) -> None:
    text = "é" * 100_000
    queue.send("redrive", group="g", offsets=[[0, 1], [5, 5]], to="group", by=text, comment=text)
    rows = queue.operation_rows
    assert [(row.kind, row.first_offset, row.last_offset) for row in rows] == [("redrive", 0, 1), ("redrive", 5, 5)]
    assert {row.detail for row in rows} == {f"to the group, by {text}"[:512]}


def test_reject_with_a_long_cause(queue: Queue) -> None:
    """The cause goes to the dead-letter topic and into rows, shortened."""
    queue.send("dispatch", ranges=[{"first": 0, "last": 9}])
    answer = queue.send("pop", group="g", max_messages=1, invisible_time_ms=60_000)[-1]
    handles = [{"group": "g", "handle": answer["handle"]}]
    entries = [{"handle": 0, "offsets": [[0, 0]], "cause": "x" * 3_000_000}]
    (answer,) = queue.send("reject", handles=handles, entries=entries)
    assert answer["applied"]


# --------------------------------------------------------------------------------------- acks of one range each


def log_of_lone_acks(seed: int, steps: int = 400) -> list[KafkaRecord]:
    """Pops, and acks of a single range each: good ones, repeated and late ones, and ones after something else.

    That is a renewal, a release, or that messages have left the log. With an odd seed the queue has holes, and gets
    more where messages are leased.
    """
    chance = random.Random(seed)
    queue, has_holes = Queue("orders", 0), seed % 2 == 1
    queue.send("dispatch", skip=[[hole, hole + hole % 3] for hole in range(7, 9_000, 11)] if has_holes else [])
    queue.send("dispatch", ranges=[{"first": 0, "last": 9_999}])
    held: list[tuple[str, str, int, int]] = []
    for _ in range(steps):
        queue.now_ms += chance.choice([0, 1, 7, 300])
        if held and chance.random() < 0.04:  # the log begins later: some of what is leased has left it
            _, _, first, last = held[min(2, len(held) - 1)]
            queue.send("dispatch", skip=[[0, (first + last) // 2]])
        if has_holes and held and chance.random() < 0.04:
            _, _, first, last = held[chance.randrange(len(held))]
            queue.send("dispatch", skip=[[(first + last) // 2, last]])
        group = chance.choice(["billing", "stock", "in order"])
        if not held or chance.random() < 0.4:
            wanted, lease_ms = chance.choice([1, 1, 1, 3, 40, 100]), chance.choice([500, 60_000, 60_000])
            pop = {"max_messages": wanted, "invisible_time_ms": lease_ms, "order": group == "in order"}
            answer = queue.send("pop", group=group, **pop)[-1]
            held += [(group, answer["handle"], first, last) for first, last, _ in answer.get("messages", [])]
            continue
        group, handle, first, last = held[chance.randrange(len(held))]
        if chance.random() < 0.5:
            first, last = sorted((chance.randint(first, last), chance.randint(first, last)))
        given = {"handles": [{"group": group, "handle": handle}], "client_id": "c"}
        entry: dict[str, Any] = {"handle": 0, "offsets": [[first, last]]}
        if chance.random() < 0.1:
            queue.send("change_invisible", **given, entries=[{**entry, "invisible_time_ms": chance.choice([0, 9_000])}])
            continue
        if chance.random() < 0.1:
            entry["cause"] = "GONE"
        queue.send("ack", **given, entries=[entry])
        if chance.random() < 0.9:  # else: it may be acked again
            held = [each for each in held if each[1] != handle]
    return queue.records


def decided_both_ways(records: Sequence[KafkaRecord], seed: int, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Decide records with the short way and without it, compare the bytes; return for each ack if it was short."""
    decided_briefly: list[bool] = []

    def decided_by(decide: Callable[[OpContext, Ack, int], bool]) -> tuple[Bytes, Folded]:
        monkeypatch.setattr(ack_change_reject, "decide_lone_ack", decide)
        kv = MemoryKv()
        folded = Folding(kv, partitions=1).decide_all(records, random_cuts(records, seed))
        return {family: kv.families.get(family, {}) for family in KERNEL_FAMILIES}, folded

    def counted(op: OpContext, command: Ack, offsets_max: int) -> bool:
        decided_briefly.append(decide_lone_ack(op, command, offsets_max))
        return decided_briefly[-1]

    briefly, folded = decided_by(counted)
    generally, folded_generally = decided_by(lambda *_: False)
    assert differences(generally, briefly) == []
    assert folded.answers == folded_generally.answers
    assert folded.rows == folded_generally.rows
    assert folded.digest() == folded_generally.digest()
    return decided_briefly


@pytest.mark.pure
@pytest.mark.parametrize("seed", SEEDS)
def test_a_lone_ack_is_decided_as_any_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decided_briefly = decided_both_ways(log_of_lone_acks(seed), seed, monkeypatch)
    assert decided_briefly.count(True) > 50, "they are decided by the short way"
    assert decided_briefly.count(False) > 20, "some are not: they are stale, in order, or on a lane that lost messages"


@pytest.mark.pure
def test_a_lone_ack_on_a_lane_that_goes_on_with_a_return_is_decided_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(op_context, "WORK_MAX", 40)
    queue = Queue("orders", 0)
    queue.send("dispatch", ranges=[{"first": 0, "last": 999}])
    pop = {"group": "billing", "max_messages": 64, "invisible_time_ms": 60_000, "client_id": "gone"}
    handles = [queue.send("pop", **pop)[-1]["handle"] for _ in range(12)]
    queue.send("return_client", group="billing", client_id="gone")
    for number, handle in reversed(list(enumerate(handles))):
        entry = {"handle": 0, "offsets": [[64 * number, 64 * number]]}
        queue.send("ack", handles=[{"group": "billing", "handle": handle}], entries=[entry])
    for _ in range(20):
        queue.now_ms += 1_000
        queue.send("tick")
    handle = queue.send("pop", **{**pop, "max_messages": 1, "client_id": "here"})[-1]["handle"]
    queue.send("ack", handles=[{"group": "billing", "handle": handle}], entries=[{"handle": 0, "offsets": [[1, 1]]}])
    decided_briefly = decided_both_ways(queue.records, 1, monkeypatch)
    assert decided_briefly[0] is False, "the lane pauses"
    assert decided_briefly[-1] is True, "all is released"
