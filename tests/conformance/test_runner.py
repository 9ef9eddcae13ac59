"""Claim: the runner compares what it claims to compare, and leaves out nothing that it does not understand."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import VerdictKind, run_histories
from tests.conformance.golden import DATA
from tests.conformance.vectors.vector_runner import run_vector

LANE = {"topic": "T", "group": "G", "queue_id": 0}
NOW_MS = 1_000_000
SEND = {"op": "send", "topic": "T", "queue_id": 0, "count": 2}
POP = {"op": "pop", **LANE, "max": 2, "invisible_time": 10_000}


def vectors() -> dict[str, dict[str, Any]]:
    files = ("rocketmq_pop_vectors.json", "own_pop_vectors.json")
    every = [vector for file in files for vector in json.loads((DATA / file).read_text())["vectors"]]
    return {vector["id"]: vector for vector in every}


def verdict_of(component: str, *steps: dict[str, Any], **fields: Any) -> str:
    return str(run_vector({"id": "own", "component": component, "clock": NOW_MS, "steps": list(steps), **fields}))


def handle(offset: int, pop_time: int = NOW_MS, invisible_time: int = 10_000, revive: int = 0) -> str:
    return f"0 {pop_time} {invisible_time} {revive} 0 broker-a 0 {offset}"


@pytest.mark.parametrize("identity", ["BC-03", "PK-05", "PO-01", "OI-08", "AK-07", "CI-01"])
def test_an_argument_that_is_not_known_fails_by_name(identity: str) -> None:
    for number in range(len(vectors()[identity]["steps"])):
        vector = vectors()[identity]
        vector["steps"][number]["lite_topic"] = "room"
        verdict = run_vector(vector)
        assert verdict.outcome is VerdictKind.FAIL
        assert f"step {number}: {vector['steps'][number]['op']} has an unknown argument 'lite_topic'" in verdict.detail


def test_expected_fields_vector_fields_and_options_that_are_not_known_fail_by_name() -> None:
    change = {"op": "change", **LANE, "offset": 0, "extra_info": handle(0), "invisible_time": 1}
    assert verdict_of("pop_kv", SEND, POP, {**change, "expect": {"rest_num": None}}).endswith(
        "step 2: change expects an unknown field 'rest_num'"
    )
    assert verdict_of("pop_kv", SEND, later=[]).endswith("unknown field 'later'")
    assert verdict_of("pop_kv", SEND, config={"popCkOffsetMaxQueueSize": 1}).endswith(
        "unknown option 'popCkOffsetMaxQueueSize'"
    )
    assert verdict_of("batch_change", SEND, batch={"atomic": True}).endswith("unknown field 'atomic' of batch")
    assert verdict_of("ack_processor", {"op": "batch_ack", "acks": [{"x": 1}]}).endswith("unknown field 'x' of an ack")
    assert "pop has no 'max'" in verdict_of("pop_kv", {"op": "pop", **LANE, "invisible_time": 1})


@pytest.mark.parametrize("component", ["order_info", "pop_orderly"])
def test_a_step_that_is_of_the_other_kind_of_vector_fails(component: str) -> None:
    step = {"order_info": SEND, "pop_orderly": {"op": "oi_update", **LANE}}[component]
    assert verdict_of(component, step).startswith("own fail step 0: there is no step")


def test_what_a_history_has_and_the_runner_does_not_know_fails_by_name(tmp_path: Path) -> None:
    line = (DATA / "rocketmq_concurrent_histories.jsonl").read_text().splitlines()[0]
    history = json.loads(line)
    for place, key in ((history, "a"), (history["ops"][1], "b"), (history["ops"][1]["args"], "c")):
        place[key] = 1
    history["ops"][1]["result"]["d"] = 1
    history["ops"].append({**history["ops"][0], "op": "peek", "i": 99})
    file = tmp_path / "history.jsonl"
    file.write_text(json.dumps(history))
    [verdict] = run_histories(file)
    assert verdict.outcome is VerdictKind.FAIL
    assert verdict.detail.split("; ") == [
        "unknown field 'a'",
        "op 1: unknown field 'b'",
        "op 1: unknown argument 'c'",
        "op 1: unknown field 'd' of the result",
        "op 99: there is no operation 'peek'",
    ]


def test_a_handle_with_another_invisible_time_is_another_handle() -> None:
    ack = {"op": "ack", **LANE, "offset": 0, "extra_info": handle(0, invisible_time=10_001), "expect": {"code": 0}}
    assert verdict_of("pop_kv", SEND, POP, ack) == "own differs: fenced handles"
    good = {**ack, "extra_info": handle(0)}
    assert verdict_of("pop_kv", SEND, POP, good) == "own pass"


def test_the_rule_of_an_equal_deadline_holds_for_the_message_that_was_changed_and_no_other() -> None:
    """It once took every lease with that offset and deadline for one that RocketMQ has lost."""
    records = [
        {
            "visibility_timeout": NOW_MS + 10_000,
            "pop_time": NOW_MS,
            "invisible_time": 10_000,
            "topic": "T",
            "queue_id": 0,
            "offset": offset,
            "attempt_times": 0,
            "retry_flag": 0,
        }
        for offset in (0, 1)
    ]
    change = {"op": "change", **LANE, "offset": 0, "extra_info": handle(0), "invisible_time": 9_000}
    clock = {"op": "clock", "now": NOW_MS + 1_000}
    left = {"op": "store_state", "expect": records[1:]}
    steps = (SEND, POP, clock, change)
    assert verdict_of("pop_kv", *steps, left) == "own differs: a change to an equal deadline keeps the message"
    for wrong in ([], records, records[:1]):
        assert verdict_of("pop_kv", *steps, {**left, "expect": wrong}).startswith("own fail")
    other = {**change, "extra_info": handle(0, invisible_time=9_999)}
    kept = [records[0], records[1]]
    assert verdict_of("pop_kv", *steps[:3], other, {**left, "expect": kept}).startswith("own fail")


def test_the_order_info_of_a_lane_that_was_popped_is_compared() -> None:
    pop = {**POP, "order": True, "attempt_id": "A"}
    state = {"op": "oi_state", **LANE, "expect": {"o": [0, 1], "cm": 0, "a": "A", "popTime": NOW_MS, "ot": None}}
    timer = {"op": "oi_timer", **LANE, "expect": NOW_MS + 10_000}
    assert verdict_of("pop_orderly", SEND, pop, state, timer) == "own pass"
    assert verdict_of("pop_orderly", SEND, pop, {**state, "expect": {"cm": 1}}).startswith("own fail")
    assert verdict_of("pop_orderly", SEND, pop, {**timer, "expect": NOW_MS}).startswith("own fail")


def test_a_message_that_one_request_names_twice_counts_once() -> None:
    clock = {"op": "clock", "now": NOW_MS + 10}
    change = {"op": "change", **LANE, "offset": 0, "extra_info": handle(0), "invisible_time": 5_000}
    other = {**change, "invisible_time": 6_000}
    verdict = verdict_of("batch_change", SEND, POP, clock, change, other)
    assert verdict == "own differs: fenced handles; results per entry"


def test_a_queue_whose_first_messages_leave_it_goes_on() -> None:
    held = {"op": "set_queue_range", "topic": "T", "queue_id": 0, "min": 0, "max": 4}
    later = {"op": "set_queue_range", "topic": "T", "queue_id": 0, "min": 3, "max": 6}
    pop = {**POP, "max": 1, "expect": {"messages": [["T", 0, 0, 0]]}}
    rest = {**POP, "max": 9, "expect": {"messages": [["T", 0, 3, 0], ["T", 0, 4, 0], ["T", 0, 5, 0]]}}
    assert verdict_of("pop_kv", held, pop, later, rest) == "own pass"
    assert verdict_of("pop_kv", later, held).startswith("own not-applicable: a queue that loses its end")


@pytest.mark.parametrize("key", ["required_state_offsets", "snapshot_state_offsets", "put_all_then_delete_all_offsets"])
def test_a_batch_block_with_a_wrong_value_fails(key: str) -> None:
    vector = vectors()["BC-03"]
    vector["batch"][key] = [7]
    assert run_vector(vector).detail.startswith(f"at batch, {key}")


def test_a_revive_must_have_its_copies_and_their_counts() -> None:
    for puts in (["%RETRY%G_T#0#0 rc=2"], [], ["%RETRY%G_T#0#0 rc=1", "%RETRY%G_T#0#1 rc=1"]):
        vector = vectors()["PK-05"]
        step = next(step for step in vector["steps"] if step["op"] == "revive")
        step["expect"]["puts"] = puts
        assert run_vector(vector).outcome is VerdictKind.FAIL


def test_a_pop_that_waits_too_long_is_not_taken_for_one_that_waits(tmp_path: Path) -> None:
    """The own histories have pops that wait for an orderly lane; here RocketMQ has its answer a second late."""
    tried = []
    for line in (DATA / "own_histories.jsonl").read_text().splitlines():
        history = json.loads(line)
        waits = [op for op in history["ops"] if op["op"] == "pop" and op["args"]["poll_time"]]
        if waits:
            waits[0]["result"]["pop_time"] += 1_000
            tried.append(json.dumps(history))
    file = tmp_path / "late.jsonl"
    file.write_text("\n".join(tried))
    assert len(tried) > 3
    assert {verdict.outcome for verdict in run_histories(file)} == {VerdictKind.FAIL}
