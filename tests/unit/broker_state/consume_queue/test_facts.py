"""Claim: consume queues behave as RocketMQ's own tests demand, except where a difference is named here.

Method: every fact of tests/data/rocketmq_consume_queue_facts.json, with its figures and formulas. RocketMQ's physical
offset, which orders the records, is our queue offset; its base and counts are message offsets, as ours are.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker_state.consume_queue import (
    Absence,
    ContradictionError,
    Unit,
    first_unit_since,
    last_unit_until,
    message_count,
    unit_at_or_after,
    unit_of_message,
    units_from,
)
from broker_state.kernel.context.queue_state import load_queue
from broker_state.store.marks import Marks
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from broker_state.store.position import Position
from popstream.wire.command import Declare, Dispatch, Policy, QueueType, WrittenRange
from popstream.wire.reason import Reason
from tests.support.in_process.lane_lab import QUEUE, LaneLab
from tests.unit.broker_state.consume_queue.queue_lab import QueueLab, unit

FACTS: dict[str, dict[str, Any]] = {
    fact["id"]: fact
    for fact in json.loads((Path(__file__).parents[3] / "data" / "rocketmq_consume_queue_facts.json").read_text())[
        "vectors"
    ]
}
WITHOUT_COUNTERPART = {
    "BCQ-15": "a pop is bounded by messages, not by bytes: payloads come from Kafka, whose fetch has limits of its own",
    "BCQ-18": "no sampling: the number of messages between two offsets is always exact",
    "BCQ-22": "a unit has no bytes of its own; 1024 of them share a block",
    "SCQ-05": "the map of the latest offset of each key is part of compaction, which Kafka does",
    "DSP-01": "what may be indexed before it is flushed is Kafka's high watermark; a builder sees nothing beyond it",
    "RDB-01": "a key layout; there is no table of offsets beside the queue's own record",
    "RDB-10": "a key layout; there is no checkpoint over several queues, each has its own end",
    "RIP-06": "queues share no log: each partition of Kafka is read from its own offset, so none waits for another",
}
TYPES: dict[str, QueueType] = {"SimpleCQ": "simple", "BatchCQ": "batch"}
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def formula(text: str | int, **names: int) -> int:
    """The value of a formula of the facts, such as "10*i+1"."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.BinOp(left, kind, right):
                return OPERATORS[type(kind)](value(left), value(right))
            case ast.Name(name):
                return names[name]
            case ast.Constant(int(number)):
                return number
        raise AssertionError(ast.dump(node))

    return value(ast.parse(str(text), mode="eval").body)


def span(text: str) -> range:
    """The numbers of "first..last"."""
    first, last = map(int, text.split(".."))
    return range(first, last + 1)


def units_of(put: Mapping[str, Any]) -> list[Unit]:
    """Return the units that a put of the facts writes."""
    return [
        unit(
            formula(put["phy"], i=i),
            size_bytes=put.get("size", 100),
            tag_hash=put.get("tag", 0),
            store_time_ms=formula(put.get("time", 0), i=i),
            message_base=formula(put["base"], i=i),
            inner_count=put["n"],
        )
        for i in span(put["i"])
    ]


def built(units: list[Unit]) -> QueueLab:
    """A batch queue of units, whose messages are numbered from the first one's base: as the facts have them."""
    lab = QueueLab("batch", units[0].queue_offset, units[0].message_base)
    lab.scan([msgspec.structs.replace(each, message_base=0) for each in units], units[-1].queue_offset + 1)
    assert list(units_from(lab.queue, lab.get, 0)) == units
    return lab


def batches(count: int, inner_count: int, gap_ms: int = 0) -> QueueLab:
    lab = QueueLab("batch")
    lab.scan([unit(at, inner_count=inner_count, store_time_ms=gap_ms * at) for at in range(count)], count)
    return lab


def simple(count: int, **fields: Callable[[int], int]) -> QueueLab:
    lab = QueueLab("simple")
    lab.scan([unit(at, **{name: value(at) for name, value in fields.items()}) for at in range(count)], count)
    return lab


def message_ends(lab: QueueLab) -> dict[str, int]:
    return {"min": lab.queue.start_message_base, "max": lab.queue.end_message_base}


def by_message(lab: QueueLab, message_offset: int) -> Unit | Absence:
    return unit_of_message(lab.queue, lab.get, message_offset)


def found(unit_or_absence: Unit | Absence | None) -> Unit:
    assert isinstance(unit_or_absence, Unit)
    return unit_or_absence


def test_a_message_offset_finds_the_batch_that_contains_it() -> None:
    fact = FACTS["BCQ-01"]
    lab = built(units_of(fact["ops"][0]))
    expect = fact["expect"]
    assert message_ends(lab) == {name: expect[name] for name in ("min", "max")}
    for name, message in (("earliest", expect["min"]), ("latest", expect["max"] - 1)):
        batch = found(by_message(lab, message))
        assert {"base": batch.message_base, "n": batch.inner_count} == expect[name]
    rule = expect["iterateFrom"]
    assert by_message(lab, expect["min"] - 1) == Absence.BELOW_START
    assert by_message(lab, expect["max"]) == Absence.BEYOND_END
    assert rule[f"<{expect['min']}"] is rule[f">={expect['max']}"] is None
    for message in range(expect["min"], expect["max"], 7):
        batch = found(by_message(lab, message))
        assert [batch.message_base, batch.queue_offset, batch.size_bytes, batch.tag_hash, batch.inner_count] == [
            formula(rule["else"][name], o=message) for name in ("base", "phy", "size", "tag", "n")
        ]


def test_a_queue_that_is_read_again_is_the_same() -> None:
    fact = FACTS["BCQ-03"]
    lab = built(units_of(fact["ops"][0]))
    for when in ("before", "after"):
        assert message_ends(lab) == {name: fact["expect"][when][name] for name in ("min", "max")}
        for message in span("1..1000"):
            assert found(by_message(lab, message)).message_base == formula(fact["expect"]["find_o_1..1000"], o=message)
        lab.queue = type(lab.queue).decode(lab.queue.encode())
        lab.values = dict(lab.values)


@pytest.fixture(scope="module")
def long_queue() -> QueueLab:
    return built(units_of(FACTS["BCQ-04"]["ops"][0]))


@pytest.mark.parametrize("cut", [0, 1, 777, 1024, 5_119, 19_999])
def test_truncation_leaves_what_is_before_the_cut(long_queue: QueueLab, cut: int) -> None:
    fact = FACTS["BCQ-04"]
    lab = QueueLab("batch")
    lab.queue, lab.values = long_queue.queue, dict(long_queue.values)
    lab.truncate(cut)
    base = fact["expect"]["for i in 1..19999"]["i<X"].partition("== ")[2]
    for i in span("1..19999")[::113]:
        if i < cut:
            assert found(by_message(lab, i)).message_base == formula(base, i=i)
        else:
            assert by_message(lab, formula("10*i+1", i=i)) == Absence.BEYOND_END


@pytest.mark.parametrize("fact", [FACTS["BCQ-06"], FACTS["BCQ-07"]], ids=["simple", "batch"])
def test_records_without_a_count_are_units_of_one_message(fact: dict[str, Any]) -> None:
    """RocketMQ takes them, and so do we; a batch that does not say of how many messages is not readable."""
    lab = QueueLab(TYPES[fact["given"]["topic"]])
    units: list[Unit] = []
    for op, expected in zip(fact["ops"], fact["expect"], strict=True):
        assert (op["put"]["INNER_NUM"], expected) == (None, "PUT_OK")
        units.append(unit(len(units), is_readable=not op["put"]["INNER_BATCH"]))
    lab.scan(units, len(units))
    assert list(units_from(lab.queue, lab.get, 0)) == units


def test_every_message_of_a_batch_finds_it() -> None:
    fact = FACTS["BCQ-09"]
    lab = batches(1, fact["ops"][0]["n"])
    assert message_ends(lab) == {name: fact["expect"]["each"][name] for name in ("min", "max")}
    for message in span("0..9"):
        assert found(by_message(lab, message)).queue_offset == 0


def test_a_walk_from_batch_to_batch_ends_at_the_end() -> None:
    fact = FACTS["BCQ-10"]
    lab = QueueLab("batch")
    count = fact["given"]["batches"]
    lab.scan([unit(at, inner_count=2 + at * 7 % 1_000) for at in range(count)], count)
    message, steps = 0, 0
    while isinstance(batch := by_message(lab, message), Unit):
        assert batch.message_base == message
        message = formula(fact["expect"]["each"]["next"], base=batch.message_base, n=batch.inner_count)
        steps += 1
    assert (steps, message) == (fact["expect"]["steps"], lab.queue.end_message_base)
    assert batch == Absence.BEYOND_END


def test_batches_as_they_are_dispatched() -> None:
    fact = FACTS["BCQ-12"]
    put, get = fact["ops"]
    lab = batches(put["times"], put["n"], put["gap_ms"])
    expect = fact["expect"]
    assert message_ends(lab) == {name: expect[name] for name in ("min", "max")}
    assert lab.queue.message_count == expect["total"]
    assert found(by_message(lab, 300)).store_time_ms == 30 * put["gap_ms"]
    records = list(takewhile(lambda each: each.message_end <= get["max"], units_from(lab.queue, lab.get, 0)))
    assert len(records) == expect["records"]
    for i, record in enumerate(records):
        assert record.message_base == formula(expect["record_i"]["INNER_BASE"], i=i)
        assert record.inner_count == expect["record_i"]["INNER_NUM"]


def test_single_messages_by_time() -> None:
    fact = FACTS["BCQ-13"]
    put, expect = fact["ops"][0], fact["expect"]
    lab = simple(put["times"], store_time_ms=lambda at: 1_000 + put["gap_ms"] * at)
    assert message_ends(lab) == {name: expect[name] for name in ("min", "max")}
    assert lab.queue.message_count == expect["total"]
    assert found(first_unit_since(lab.queue, lab.get, 0)).queue_offset == expect["by_time(0)"]
    time_ms = 1_000 + 50 * put["gap_ms"]
    assert found(first_unit_since(lab.queue, lab.get, time_ms)).queue_offset == expect["by_time(t of put 50)"]
    assert first_unit_since(lab.queue, lab.get, 1 << 62) is None
    assert lab.queue.end_offset == expect["by_time(far future)"]


def test_the_count_of_an_empty_queue() -> None:
    """Differs: an empty range has 0 messages, where RocketMQ answers -1."""
    fact = FACTS["BCQ-16"]
    lab = QueueLab("batch")
    for (first, end), expected in zip(fact["ops"], fact["expect"], strict=True):
        assert (message_count(lab.queue, lab.get, first, end), expected) == (0, -1)


def test_a_hole_is_no_part_of_the_batch_before_it() -> None:
    """Differs: RocketMQ answers a hole with the unit before it, and ignores another record at a known offset."""
    fact = FACTS["BCQ-19"]
    lab = QueueLab("batch")
    for op, expected in zip(fact["ops"], fact["expect"], strict=True):
        if "put" in op:
            put = op["put"]
            batch = unit(put["phy"], message_base=put["base"], inner_count=put["n"])
            if expected == "written":
                lab.append([batch], first_offset=put["phy"])
            else:
                with pytest.raises(ContradictionError):
                    lab.append([batch], first_offset=put["phy"])
            continue
        batches_with = [
            each for each in units_from(lab.queue, lab.get, 0) if each.message_base <= op["get"] < each.message_end
        ]
        if batches_with:
            assert [each.message_base for each in batches_with] == [expected["base"]]
            assert by_message(lab, op["get"]) == batches_with[0]
        else:
            assert by_message(lab, op["get"]) == (Absence.BEYOND_END if expected is None else Absence.HOLE)


def test_the_first_batch_since_a_time() -> None:
    """Differs: between two of its files RocketMQ answers the last batch before the time."""
    fact = FACTS["BCQ-21"]
    times, inner_count = fact["given"]["times"], fact["given"]["n"]
    lab = QueueLab("batch")
    for at, time_ms in enumerate(times):
        # Far from the one before: in a block of its own.
        lab.scan([unit(5_000 * at, inner_count=inner_count, store_time_ms=time_ms)], 5_000 * at + 1)
    for op, expected in zip(fact["ops"], fact["expect"], strict=True):
        batch = found(first_unit_since(lab.queue, lab.get, op["t"]))
        assert batch.store_time_ms == min(time_ms for time_ms in times if time_ms >= op["t"])
        is_defect = times[expected // inner_count] < op["t"]
        assert is_defect or batch.message_base == expected


def test_a_sparse_queue_is_searched_for_the_next() -> None:
    fact = FACTS["SCQ-02"]
    lab = QueueLab("sparse")
    offsets = sorted({offset for bases in fact["given"]["files_bases"] for offset in span(bases)})
    lab.scan([unit(offset) for offset in offsets], 1_000)
    for op, expected in zip(fact["ops"], fact["expect"], strict=True):
        answer = unit_at_or_after(lab.queue, lab.get, op["iterateFromOrNext"])
        assert (answer.queue_offset if isinstance(answer, Unit) else None) == expected


def test_a_sparse_queue_may_begin_anywhere() -> None:
    fact = FACTS["SCQ-03"]
    put = fact["ops"][1]["put"]
    lab = QueueLab("sparse")
    lab.scan([unit(put["base"], size_bytes=put["size"], tag_hash=put["tag"], store_time_ms=put["time"])], 2)
    only = found(unit_at_or_after(lab.queue, lab.get, fact["ops"][2]["get"]))
    assert only.size_bytes == fact["expect"]["get(1).size"]


def test_a_queue_keeps_its_type() -> None:
    fact = FACTS["SCQ-06"]
    lab = LaneLab()
    other = TYPES[fact["given"]["topic_now"]]
    assert fact["expect"]["RuntimeException_endsWith"]
    answer = lab.do(Declare(**QUEUE, topic_id="id", queue_type=other))
    assert answer is not None
    assert answer.reason is Reason.INVALID_PARAMETER


def test_only_known_queue_types() -> None:
    fact = FACTS["SCQ-08"]
    record = {"type": "declare", "topic": "t", "queue_id": 0, "v": 1, "topic_id": "id"}
    for queue_type in (*TYPES.values(), "sparse"):
        msgspec.json.decode(json.dumps({**record, "queue_type": queue_type}), type=Declare)
    for queue_type in fact["ops"][0].values():
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(json.dumps({**record, "queue_type": queue_type}), type=Declare)


@pytest.mark.parametrize("expect", [FACTS["DSP-03"]["expect"], FACTS["RDB-09"]["expect"]["both stores"]])
def test_single_messages_by_offset(expect: dict[str, Any]) -> None:
    lab = simple(expect["max"], size_bytes=lambda _: 1_000, tag_hash=lambda at: at)
    assert message_ends(lab) == {name: expect[name] for name in ("min", "max")}
    assert expect["iterateFrom(-1)"] is expect["iterateFrom(100)"] is None
    assert by_message(lab, -1) == Absence.BELOW_START
    assert by_message(lab, 100) == Absence.BEYOND_END
    for at, each in enumerate(units_from(lab.queue, lab.get, 0)):
        rule = expect.get("unit k", {"size": each.size_bytes, "tag": each.tag_hash, "n": each.inner_count})
        assert each.queue_offset == at
        assert [each.size_bytes, each.tag_hash, each.inner_count] == [
            formula(rule[name], k=at) for name in ("size", "tag", "n")
        ]


def test_units_from_an_offset_on() -> None:
    fact = FACTS["RDB-03"]
    lab = simple(fact["given"]["max"])
    units = list(units_from(lab.queue, lab.get, fact["ops"][0]["iterateFrom"]))
    assert len(units) == fact["expect"]["units"]
    assert [each.queue_offset for each in units] == list(span(fact["expect"]["offsets"]))


def test_a_log_that_lost_its_last_record() -> None:
    """RocketMQ truncates after damage to its log; Kafka's log is shorter after an unclean election."""
    fact = FACTS["RDB-04"]
    lab = QueueLab("simple")
    is_damaged = False
    ends = []
    for op in fact["ops"]:
        end = lab.queue.end_offset
        if "put" in op:
            lab.scan([unit(end + i) for i in range(op["put"])], end + op["put"])
            is_damaged = "then" in op
        elif is_damaged:
            lab.truncate(end - 1)
            is_damaged = False
        ends.append(lab.queue.end_offset)
    assert ends == fact["expect"]["max_after"]


def test_as_many_units_as_are_asked_for() -> None:
    fact = FACTS["RDB-06"]
    lab = simple(fact["given"]["messages"])
    for op, expected in zip(fact["ops"], fact["expect"], strict=True):
        offset, count = op["get"]
        assert len(list(islice(units_from(lab.queue, lab.get, offset), count))) == expected


def test_a_queue_that_was_never_written_has_nothing_at_any_time() -> None:
    lab = QueueLab("simple")
    for time_ms in (-1, 0, 1 << 62):
        assert first_unit_since(lab.queue, lab.get, time_ms) is None
        assert last_unit_until(lab.queue, lab.get, time_ms) is None
    assert [lab.queue.end_offset] == FACTS["RDB-07"]["expect"]


def test_queues_that_are_written_together() -> None:
    fact = FACTS["RDB-12"]
    labs: dict[str, QueueLab] = {}
    for put in fact["ops"][0]["group"]:
        lab = labs.setdefault(put["q"], QueueLab("simple"))
        lab.scan([unit(put["off"], size_bytes=put["size"])], put["off"] + 1)
    assert {name: lab.queue.end_offset for name, lab in labs.items()} == fact["expect"]["maxOffsetInQueue"]
    assert sum(lab.queue.unit_count for lab in labs.values()) == fact["expect"]["unit_puts"]


@pytest.mark.parametrize("fact", [FACTS["RIP-01"], FACTS["RIP-03"]], ids=["out of order", "twice"])
def test_the_commit_position_is_the_end_of_what_is_done_without_a_gap(fact: dict[str, Any]) -> None:
    kv = MemoryKv()
    written = Position(Marks(Overlay(kv), b"W"), span(fact["given"]["numbers"].split()[0]).start, 0)
    last_done = []
    for op in fact["ops"]:
        written.mark(op["done"], op["done"] + 1)
        last_done.append(written.floor - 1)
    assert last_done == fact["expect"]["C"]
    assert written.above == 0


def test_the_window_holds_back_who_is_too_far_ahead() -> None:
    """A number of the fact is a quarter of our least window."""
    fact = FACTS["RIP-04"]
    window = 1_000_000
    width = window // fact["given"]["window"]
    lab = LaneLab()
    lab.do(Policy(**QUEUE, window_max=window))
    queue = load_queue(lab.overlay, QUEUE["topic"], QUEUE["queue_id"])
    assert queue is not None
    taken = 0

    def write(first: int, end: int) -> bool:
        answer = lab.do(Dispatch(**QUEUE, ranges=[WrittenRange(first, end - 1)]))
        assert answer is not None
        assert answer.reason in {Reason.OK, Reason.AHEAD_OF_WINDOW}
        return answer.reason is Reason.OK

    for op, expected in zip(fact["ops"], fact["expect"], strict=True):
        if "take" in op:
            numbers: list[int | None] = []
            for _ in range(op["take"]):
                # Whether the last offset of the next number may be written.
                end = (taken + 1) * width
                is_taken = write(end - 1, end)
                taken += is_taken
                numbers.append(taken if is_taken else None)
            assert numbers == expected
            continue
        for number in op["done"] if isinstance(op["done"], list) else [op["done"]]:
            assert write((number - 1) * width, number * width)
        assert queue.written.floor == expected["C"] * width
        assert queue.written.above == expected.get("bits", queue.written.above)


def test_every_fact_is_tested_or_has_no_counterpart() -> None:
    source = Path(__file__).read_text()
    tested = {fact for fact in FACTS if f'FACTS["{fact}"]' in source}
    assert tested | WITHOUT_COUNTERPART.keys() == FACTS.keys()
    assert not tested & WITHOUT_COUNTERPART.keys()
