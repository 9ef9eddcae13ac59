"""Vectors and recordings of RocketMQ against the kernel, and that the comparison can fail."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from popstream.wire.base_errors import Invalid
from tests.conformance import VerdictKind, run_histories, run_vectors
from tests.conformance.__main__ import main
from tests.conformance.golden import DATA, GOLDEN, changed
from tests.conformance.histories.own_histories import histories
from tests.conformance.vectors.vector_runner import run_vector

VECTORS = DATA / "rocketmq_pop_vectors.json"
HISTORIES = DATA / "rocketmq_orderly_histories.jsonl"
CONCURRENT = DATA / "rocketmq_concurrent_histories.jsonl"


def test_vectors_and_histories_have_the_verdicts_that_were_looked_at() -> None:
    """A line that changes wants a look: it is a rule found or lost, or a defect."""
    assert list(changed()) == []
    lines = [line for golden in GOLDEN for line in golden.lines()]
    assert not [line for line in lines if " fail" in line]
    assert sum(" not-applicable" in line for line in lines) == 30


def test_own_histories_are_those_that_are_written() -> None:
    written = [msgspec.json.encode(history) for history in histories()]
    assert (DATA / "own_histories.jsonl").read_bytes().splitlines() == written


def falsified(value: Any) -> Iterator[Any]:
    """Every value with one of its numbers or flags made wrong."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif value is None:
        yield 12_345
    elif isinstance(value, dict):
        for key, item in value.items():
            for wrong in falsified(item):
                yield {**value, key: wrong}
    elif isinstance(value, list):
        for number, item in enumerate(value):
            for wrong in falsified(item):
                yield [*value[:number], wrong, *value[number + 1 :]]


def test_an_order_info_vector_with_any_wrong_value_fails() -> None:
    tried = 0
    for vector in json.loads(VECTORS.read_text())["vectors"]:
        if vector["component"] not in {"order_info", "order_info_timer"}:
            continue
        for number, step in enumerate(vector["steps"]):
            for wrong in falsified(step["expect"]) if "expect" in step else ():
                changed = copy.deepcopy(vector)
                changed["steps"][number]["expect"] = wrong
                assert run_vector(changed).outcome is VerdictKind.FAIL, (vector["id"], number, wrong)
                tried += 1
    assert tried > 90


NOT_COMPARED = {"rest", "start_offset_info", "msg_offset_info"}
"""Header strings that only RocketMQ has, and a number that depends on its order of queues."""


def without_what_is_not_compared(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_what_is_not_compared(item) for k, item in value.items() if k not in NOT_COMPARED}
    return [without_what_is_not_compared(item) for item in value] if isinstance(value, list) else value


def test_a_kernel_vector_with_any_wrong_value_fails() -> None:
    """Whether ours is RocketMQ's value or follows from it by a rule: a rule knows what RocketMQ must have."""
    tried, accepted = 0, []
    for vector in json.loads(VECTORS.read_text())["vectors"]:
        if run_vector(vector).outcome not in {VerdictKind.PASS, VerdictKind.DIFFERS}:
            continue
        for number, step in enumerate(vector["steps"]):
            if "expect" not in step:
                continue
            expected = without_what_is_not_compared(step["expect"])
            for wrong in falsified(expected):
                changed = copy.deepcopy(vector)
                changed["steps"][number]["expect"] = wrong
                tried += 1
                if run_vector(changed).outcome is not VerdictKind.FAIL:
                    accepted.append((vector["id"], number, wrong))
    assert accepted == []
    assert tried > 250


Change = Callable[[dict[str, Any]], bool]


def _ack_code(op: dict[str, Any]) -> bool:
    if op["op"] != "ack":
        return False
    op["result"]["code"] = 1
    return True


def _committed(op: dict[str, Any]) -> bool:
    probe = op["committed"] if isinstance(op["committed"], dict) else op["committed"][0]
    if op["op"] != "pop" or probe["offset"] is None:
        return False
    probe["offset"] -= 1
    return True


def _message(op: dict[str, Any]) -> bool:
    if op["op"] != "pop" or not op["result"]["messages"]:
        return False
    op["result"]["messages"].pop()
    return True


def _count(op: dict[str, Any]) -> bool:
    if op["op"] != "pop" or not op["result"]["messages"]:
        return False
    op["result"]["messages"][0]["reconsume_times"] += 1
    return True


def _retry_max(op: dict[str, Any]) -> bool:
    if "retry_max" not in op:
        return False
    op["retry_max"] += 3
    return True


def _new_time(op: dict[str, Any]) -> bool:
    if op["op"] != "change" or op["result"]["code"] or not op["result"]["pop_time"]:
        return False
    op["result"]["invisible_time"] += 1
    return True


@pytest.mark.parametrize("change", [_ack_code, _committed, _message, _count, _new_time, _retry_max])
def test_a_history_with_a_wrong_answer_fails(change: Change, tmp_path: Path) -> None:
    tried = []
    for line in (HISTORIES.read_text() + CONCURRENT.read_text()).splitlines()[-40:]:
        history = json.loads(line)
        if any(change(op) for op in history["ops"]):
            tried.append(json.dumps(history))
    file = tmp_path / "wrong.jsonl"
    file.write_text("\n".join(tried))
    verdicts = list(run_histories(file))
    assert len(verdicts) == len(tried) > 3
    assert [str(verdict) for verdict in verdicts if verdict.outcome is not VerdictKind.FAIL] == []


def test_a_wrong_final_order_info_fails(tmp_path: Path) -> None:
    history = json.loads(HISTORIES.read_text().splitlines()[0])
    history["final_order_info"]["cm"] ^= 1
    file = tmp_path / "wrong.jsonl"
    file.write_text(json.dumps(history))
    [verdict] = run_histories(file)
    assert verdict.outcome is VerdictKind.FAIL
    assert "final order info" in verdict.detail


@pytest.mark.parametrize("content", ["", "[]", '{"vectors": 3}', "not json"])
def test_a_file_without_vectors_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "vectors.json"
    file.write_text(content)
    with pytest.raises(Invalid, match="no vectors"):
        list(run_vectors(file))


def test_what_cannot_be_read_as_a_vector_fails_and_the_others_are_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.loads(VECTORS.read_text())["vectors"][0]
    odd = [{"id": "X-1"}, {"id": "X-2", "component": "pop_orderly", "steps": [{"op": "fly"}]}, 7]
    file = tmp_path / "vectors.json"
    file.write_text(json.dumps({"vectors": [*odd, good]}))
    exit_code = main(["vectors", str(file)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[1] for line in lines[:4]] == ["fail", "fail", "fail", "pass"]
    assert lines[-1] == "1 passed, 3 failed"
    assert exit_code == 1


LANE = {"topic": "T", "group": "G", "queue_id": 0}


def own_vector(component: str, *steps: dict[str, Any]) -> str:
    return str(run_vector({"id": "own", "component": component, "clock": 1_000_000, "steps": list(steps)}))


def oi(op: str, **fields: Any) -> dict[str, Any]:
    return {"op": f"oi_{op}", **LANE, **fields}


POPPED = {"attempt_id": None, "pop_time": 1_000_000, "invisible_time": 1_000}


@pytest.mark.parametrize(
    ("expected", "verdict"),
    [(1_001_000, "own differs: true wake-up moment"), (1_005_000, "own fail"), (1_002_000, "own fail")],
    ids=["RocketMQ's moment", "ours, which RocketMQ does not have", "neither"],
)
def test_a_later_member_that_blocks_moves_the_wake_up(expected: int, verdict: str) -> None:
    steps = (
        oi("update", **POPPED, offsets=[1, 2]),
        oi("update_next_visible_time", offset=2, pop_time=1_000_000, next_visible_time=1_005_000),
        oi("timer", expect=expected),
        oi("lock_free_timestamp", expect=expected),
    )
    assert own_vector("order_info_timer", *steps).startswith(verdict)


def test_more_than_64_members_are_acked_one_by_one() -> None:
    offsets = list(range(100, 170))
    steps = (
        oi("update", **POPPED, offsets=offsets),
        oi("commit_and_next", offset=164, pop_time=1_000_000, expect=101),
        oi("commit_and_next", offset=100, pop_time=1_000_000, expect=101),
        oi("commit_and_next", offset=101, pop_time=1_000_000, expect=102),
    )
    assert own_vector("order_info", *steps) == "own differs: no 64-message limit"
    assert own_vector("order_info", *steps[:1], {**steps[1], "expect": 100}).startswith("own fail")


def send_and_pop(messages: int, count: int) -> list[dict[str, Any]]:
    pop = {"op": "pop", **LANE, "max": count, "invisible_time": 10_000, "order": True, "attempt_id": None}
    return [{"op": "send", "topic": "T", "queue_id": 0, "count": messages}, pop]


def test_a_reset_of_a_blocked_lane_takes_effect_at_once() -> None:
    send, pop = send_and_pop(5, 2)
    reset = {"op": "admin_reset_offset", **LANE, "offset": 3}
    later = {"op": "clock", "now": 1_010_000}
    blocked, served = (
        {**pop, "expect": {"messages": []}},
        {**pop, "expect": {"messages": [["T", 0, 3, 0], ["T", 0, 4, 0]]}},
    )
    assert own_vector("pop_orderly", send, pop, reset, blocked) == "own differs: a reset takes effect at once"
    assert own_vector("pop_orderly", send, pop, reset, served) == "own pass"
    assert own_vector("pop_orderly", send, pop, later, reset, blocked).startswith("own fail")


def test_an_ack_that_frees_a_lane_wakes_who_waits_if_there_is_anything() -> None:
    ack = {"op": "ack", **LANE, "offset": 0, "extra_info": "0 1000000 10000 999 0 broker-a 0 0"}
    woken = {"op": "notified", "expect": ["T@G@0"]}
    assert own_vector("pop_orderly", *send_and_pop(2, 1), {"op": "notified"}, ack, woken) == "own pass"
    none_left = own_vector("pop_orderly", *send_and_pop(1, 1), {"op": "notified"}, ack, woken)
    assert none_left == "own differs: true wake-up moment"
    assert own_vector("pop_orderly", *send_and_pop(2, 1), {"op": "notified"}, woken).startswith("own fail")


ENTRY = {"topic": "topic", "group": "group", "queue_id": 0}
UPDATE = {"op": "oi_update", "attempt_id": None, "pop_time": 1_000_000, **ENTRY}
OF_THE_MANAGER = {
    "the 64th ack makes the bits negative": (
        [
            {**UPDATE, "invisible_time": 3_000, "offsets": list(range(64))},
            {"op": "oi_commit_and_next", "offset": 63, "pop_time": 1_000_000, **ENTRY, "expect": 0},
            {"op": "oi_state", **ENTRY, "expect": {"cm": -(1 << 63)}},
        ],
        VerdictKind.PASS,
    ),
    "an invisible time that says nothing is kept as it came": (
        [
            {**UPDATE, "invisible_time": -5, "offsets": [1]},
            {"op": "oi_state", **ENTRY, "expect": {"i": -5}},
            {"op": "oi_check_block", "attempt_id": None, "invisible_time": 3_000, **ENTRY, "expect": True},
            {"op": "oi_state", **ENTRY, "expect": {"i": 3_000}},
        ],
        VerdictKind.DIFFERS,
    ),
    "a time is stored for an offset that is no member": (
        [
            {**UPDATE, "invisible_time": 3_000, "offsets": [1, 3]},
            {"op": "oi_update_next_visible_time", "offset": 2, "pop_time": 1_000_000, "next_visible_time": 7, **ENTRY},
            {"op": "oi_state", **ENTRY, "expect": {"ot": {"2": 7}}},
        ],
        VerdictKind.DIFFERS,
    ),
    "a name with an @ is never cleaned": (
        [
            {**UPDATE, "invisible_time": 1, "offsets": [1], "group": "a@b"},
            {"op": "oi_auto_clean", "expect": {"table_size": 1}},
        ],
        VerdictKind.PASS,
    ),
    "the 65th member is free with the first": (
        [
            {**UPDATE, "invisible_time": 3_000, "offsets": list(range(65))},
            *({"op": "oi_commit_and_next", "offset": at, "pop_time": 1_000_000, **ENTRY} for at in range(64)),
            {"op": "oi_check_block", "attempt_id": None, "invisible_time": 3_000, **ENTRY, "expect": False},
        ],
        VerdictKind.DIFFERS,
    ),
}


@pytest.mark.parametrize("claim", OF_THE_MANAGER)
def test_what_rocketmqs_manager_keeps_is_compared_as_it_keeps_it(claim: str) -> None:
    steps, outcome = OF_THE_MANAGER[claim]
    verdict = run_vector({"id": claim, "component": "order_info", "clock": 1_000_000, "steps": steps})
    assert verdict.outcome is outcome, verdict.detail
