"""Claim: an outage of the job of 10 minutes costs each message at most one attempt.

Method: the kernel, with record times chosen by the test. Short leases, back-offs and parked pops fall due while nothing
is decided; then the log continues ten minutes later. Pops that were parked before the outage time out, and do not get
messages whose leases expire at the same record: their clients stopped waiting long ago.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from broker_state.audit import DeliveryRow
from broker_state.store.memory_kv import MemoryKv
from pipelines.decide_ops.decode import KafkaRecord
from popstream.exchange.partitioner import ops_key
from tests.support.in_process.folding import Folding

OUTAGE_MS = 600_000
MESSAGES = 40


class Log:
    """One queue and one group; records at chosen times, each in its own micro-batch or all in one."""

    def __init__(self) -> None:
        self.now_ms = 1_790_000_000_000
        self.folding = Folding(MemoryKv(), partitions=1)
        self._number = 0
        self._waiting: list[KafkaRecord] = []
        self.put("declare", topic_id="t")
        self.put("dispatch", ranges=[{"first": 0, "last": MESSAGES - 1}])

    def put(self, kind: str, **fields: Any) -> str:
        """A record at the end of the log, not decided yet."""
        self._number += 1
        op_id = f"op-{self._number}"
        operation = {"v": 1, "type": kind, "topic": "t", "queue_id": 0, "op_id": op_id, "reply_to": 0, **fields}
        value = json.dumps(operation).encode()
        self._waiting.append(KafkaRecord(0, self._number, self.now_ms, ops_key("t", 0), value, len(value)))
        return op_id

    def pop(self, count: int, invisible_time_ms: int, poll_time_ms: int = 0) -> str:
        """A pop by the one group."""
        pop = {"max_messages": count, "invisible_time_ms": invisible_time_ms, "poll_time_ms": poll_time_ms}
        return self.put("pop", group="g", client_id="c", **pop)

    def decide(self) -> dict[str, dict[str, Any]]:
        """Decide what waits as one micro-batch; all answers so far by op_id."""
        self.folding.decide(self._waiting)
        self._waiting = []
        answers = [json.loads(answer) for _, answer in self.folding.folded.answers]
        return {answer["op_id"]: answer for answer in answers}

    @property
    def deliveries(self) -> list[DeliveryRow]:
        """The rows of `deliveries`."""
        return self.folding.folded.rows["deliveries"]

    def times(self, step: str) -> Counter[int]:
        """How often each message took a step."""
        return Counter(
            offset
            for row in self.deliveries
            if row.step == step
            for offset in range(row.first_offset, row.last_offset + 1)
        )


@pytest.mark.parametrize("back_off_ms", [[], [50], [500, 120_000]])
@pytest.mark.parametrize("invisible_time_ms", [1, 250, 30_000])
def test_each_message_loses_at_most_one_attempt(invisible_time_ms: int, back_off_ms: list[int]) -> None:
    log = Log()
    log.put("policy", group="g", max_attempts=9, back_off_ms=back_off_ms)
    log.pop(MESSAGES, invisible_time_ms)
    parked = [log.pop(5, invisible_time_ms, poll_time_ms=20_000) for _ in range(10)]
    assert parked[0] not in log.decide()
    log.now_ms += OUTAGE_MS
    log.put("tick")
    answers = log.decide()
    assert set(log.times("expired").values()) == {1}
    assert len(log.times("expired")) == MESSAGES
    assert set(log.times("leased").values()) == {1}
    assert [answers[op_id]["reason"] for op_id in parked] == ["POLLING_TIMEOUT"] * len(parked)
    again = log.pop(MESSAGES, 60_000)
    assert log.decide()[again]["messages"] == [[0, MESSAGES - 1, 2]]


def test_the_whole_backlog_in_one_micro_batch_costs_no_more() -> None:
    """Records sent during the outage are decided at their own times: here a pop that times out."""
    log = Log()
    log.pop(MESSAGES, 1_000)
    log.decide()
    log.now_ms += 60_000
    second = log.pop(MESSAGES, 1_000)
    log.now_ms += OUTAGE_MS
    log.put("tick")
    third = log.pop(MESSAGES, 60_000)
    answers = log.decide()
    assert answers[second]["messages"] == [[0, MESSAGES - 1, 2]]
    assert answers[third]["messages"] == [[0, MESSAGES - 1, 3]]
    assert set(log.times("expired").values()) == {2}


def test_a_pop_that_outlives_the_outage_is_served_once() -> None:
    """Parked for longer than the outage: it gets the expired messages as a second attempt, leased from now on."""
    log = Log()
    log.pop(MESSAGES, 1_000)
    waiting = log.pop(7, 5_000, poll_time_ms=2 * OUTAGE_MS)
    log.decide()
    log.now_ms += OUTAGE_MS
    log.put("tick")
    answer = log.decide()[waiting]
    assert answer["messages"] == [[0, 6, 2]]
    assert answer["pop_time_ms"] == log.now_ms
    assert set(log.times("leased").values()) == {1, 2}
    assert set(log.times("expired").values()) == {1}


def test_the_ack_that_comes_first_after_the_outage_still_counts() -> None:
    """A consumer that finished in time must not suffer from the outage: its late ack precedes the redelivery."""
    log = Log()
    popped = log.pop(MESSAGES, 1_000)
    waiting = log.pop(MESSAGES, 1_000, poll_time_ms=2 * OUTAGE_MS)
    handle = log.decide()[popped]["handle"]
    log.now_ms += OUTAGE_MS
    entries = [{"handle": 0, "offsets": [[0, MESSAGES - 2]]}]
    ack = log.put("ack", handles=[{"group": "g", "handle": handle}], entries=entries)
    answers = log.decide()
    assert {run["reason"] for run in answers[ack]["runs"]} == {"OK"}
    assert answers[ack]["commit_offsets"] == {"g": MESSAGES - 1}
    assert answers[waiting]["messages"] == [[MESSAGES - 1, MESSAGES - 1, 2]]


def test_the_attempt_limit_is_not_reached_by_standing_still() -> None:
    """With two attempts allowed, ten minutes of one-second leases dead-letter nothing."""
    log = Log()
    log.put("policy", group="g", max_attempts=2, back_off_ms=[1_000])
    log.pop(MESSAGES, 1_000)
    log.decide()
    log.now_ms += OUTAGE_MS
    again = log.pop(MESSAGES, 1_000)
    answers = log.decide()
    assert answers[again]["messages"] == [[0, MESSAGES - 1, 2]]
    assert not log.times("dead_lettered")
    assert not log.folding.folded.dead_letters
    log.now_ms += OUTAGE_MS
    log.put("tick")
    log.decide()
    assert set(log.times("dead_lettered").values()) == {1}
    assert len(log.times("dead_lettered")) == MESSAGES
