"""A pop of any queue of a topic (pop_any_queue.py) asks at least one, however long it took to find the queues."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from popstream.pop.pop_any_queue import PopAnyQueue
from popstream.wire.answer import Answer
from popstream.wire.command import Pop
from popstream.wire.reason import Reason


class PopsOfCall:
    """In place of what sends pops: each finds nothing, at once."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def send(self, command: Pop, _timeout_ms: int | None) -> Future[Answer]:
        self.asked.append(command.queue_id)
        answered: Future[Answer] = Future()
        answered.set_result(
            Answer(
                op_id=command.op_id or "",
                type="pop",
                code=0,
                reason=Reason.NO_MESSAGE,
                applied=False,
                topic=command.topic,
                queue_id=command.queue_id,
                now_ms=1,
            )
        )
        return answered

    def wait(self, answers: set[Future[Answer]], _timeout_s: float | None) -> tuple[set[Future[Answer]], set[Any]]:
        return answers, set()


def test_queues_that_are_found_after_the_poll_time_are_asked_all_the_same() -> None:
    call: Any = PopsOfCall()

    def slowly() -> list[int]:
        time.sleep(0.02)
        return [0, 1]

    command = Pop(
        v=1, topic="orders", queue_id=-1, group="g", max_messages=10, invisible_time_ms=60_000, poll_time_ms=1
    )
    answers = PopAnyQueue(slowly).pop(command, None, call)
    assert [answer.reason for answer in answers] == [Reason.NO_MESSAGE] * 2
    assert sorted(call.asked) == [0, 1]
