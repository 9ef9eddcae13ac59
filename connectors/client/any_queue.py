"""One pop of a topic without naming a queue: whichever of its queues has something."""

from __future__ import annotations

import threading
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, wait
from typing import TYPE_CHECKING

import msgspec

from connectors.client.transport import new_op_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from broker_state.answer import Answer
    from broker_state.command import Pop
    from connectors.client.pops import Pops

__all__ = ["AnyQueue"]


class AnyQueue:
    """Chooses the queues of one topic, for many pops. Safe for use by many threads.

    Each pop begins at another queue (RocketMQ, PopMessageProcessor: queue id -1), but those first whose last pop
    brought all it asked for.

    Args:
        queue_ids: The queues of the topic.
        pops: Sends them.
    """

    def __init__(self, queue_ids: Sequence[int], pops: Pops) -> None:
        self._queue_ids = list(queue_ids)
        self._pops = pops
        self._lock = threading.Lock()
        self._turn = 0
        self._promising: set[int] = set()

    def pop(self, command: Pop, timeout_ms: int | None) -> list[Answer]:
        """Pop up to `max_messages` from the queues together; gives all the answers that count, in order of arrival.

        A promising queue is asked for everything at once. When none brings anything, every queue is asked for its
        share, and they wait together until one has something; the pops of the others are cancelled. So are all of them
        when this raises.

        Args:
            command: The pop, but for its queue and op_id.
            timeout_ms: How long to wait for an answer beyond the poll time.
        """
        promising, order = self._order()
        for queue_id in promising:
            answers = self._ask([queue_id], msgspec.structs.replace(command, poll_time_ms=0), timeout_ms)
            if answers[0].messages:
                return answers
        return self._ask(order, command, timeout_ms)

    def _order(self) -> tuple[list[int], list[int]]:
        with self._lock:
            start = self._turn % len(self._queue_ids)
            self._turn += 1
            order = self._queue_ids[start:] + self._queue_ids[:start]
            return [queue_id for queue_id in order if queue_id in self._promising], order

    def _ask(self, order: list[int], command: Pop, timeout_ms: int | None) -> list[Answer]:
        chosen = order[: max(1, command.max_messages)]
        share, more = divmod(command.max_messages, len(chosen))
        asked: dict[Future[Answer], Pop] = {}
        answers: dict[Future[Answer], Answer] = {}
        try:
            for place, queue_id in enumerate(chosen):
                count = share + (place < more)
                one = msgspec.structs.replace(command, queue_id=queue_id, op_id=new_op_id(), max_messages=count)
                asked[self._pops.send(one, timeout_ms)] = one
            # Those that do not wait are answered together.
            until = FIRST_COMPLETED if command.poll_time_ms else ALL_COMPLETED
            while len(answers) < len(asked) and not any(answer.messages for answer in answers.values()):
                for future in wait(asked.keys() - answers.keys(), return_when=until).done:
                    answers[future] = future.result()
                    self._note(asked[future], answers[future])
        except BaseException:
            answers.clear()
            raise
        finally:
            for future, one in asked.items():
                if future not in answers:
                    self._pops.take_back(one.topic, one.queue_id, one.op_id or "")
                self._pops.ended(one.op_id or "")
        return list(answers.values())

    def _note(self, one: Pop, answer: Answer) -> None:
        got_count = sum(leased.last - leased.first + 1 for leased in answer.messages)
        with self._lock:
            (self._promising.add if got_count >= one.max_messages else self._promising.discard)(one.queue_id)
