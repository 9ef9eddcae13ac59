"""One pop of a topic without naming a queue: whichever of its queues has something."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import FIRST_COMPLETED, wait
from typing import TYPE_CHECKING

import msgspec

from popstream.exchange.transport import new_op_id
from popstream.wire.failures import PopstreamError
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from popstream.pop.pops import Pops
    from popstream.wire.answer import Answer
    from popstream.wire.command import Pop

__all__ = ["AnyQueue"]

LOG = logging.getLogger(__name__)

LOOK_FOR_QUEUES_S = 30.0
POLL_MS_SHARED = 1_000
"""With fewer messages wanted than there are queues, pops wait so long at some of them before they go to others."""
OTHERS_S = 0.1
"""Once there are messages, the pops of other queues have so long to bring theirs; most are answered together."""
WAITED = frozenset((Reason.NO_MESSAGE, Reason.POLLING_TIMEOUT, Reason.CANCELLED))


class AnyQueue:
    """Chooses the queues of one topic, for many pops. Safe for use by many threads.

    Each pop begins at another queue (RocketMQ, PopMessageProcessor: queue id -1), but those first whose last pop
    brought all it asked for.

    Args:
        queues_of: Asks for the queues of the topic; there is at least one.
        pops: Sends the pops.
    """

    def __init__(self, queues_of: Callable[[], Sequence[int]], pops: Pops) -> None:
        self._queues_of = queues_of
        self._pops = pops
        self._lock = threading.Lock()
        self._queue_ids: list[int] = []
        self._look_at_s = 0.0
        self._turn = 0
        self._promising: set[int] = set()

    def pop(self, command: Pop, timeout_ms: int | None) -> list[Answer]:
        """Pop up to `max_messages` from the queues together; gives all the answers, in order of arrival.

        The caller calls `Pops.ended` for each of them, once it has taken it in.

        Args:
            command: The pop, but for its queue and op_id.
            timeout_ms: How long to wait for an answer beyond the poll time.

        Raises:
            AnswerTimeout: The job does not answer for some queue, and nothing came from another.
        """
        answers: list[Answer] = []
        for queue_ids, poll_time_ms in self._rounds(command):
            found = self._ask(queue_ids, msgspec.structs.replace(command, poll_time_ms=poll_time_ms), timeout_ms)
            answers += found
            is_refused = not any(answer.reason in WAITED for answer in found)
            if any(answer.messages for answer in found) or (poll_time_ms and is_refused):
                break
        return answers

    def _rounds(self, command: Pop) -> Iterator[tuple[list[int], int]]:
        """(queues to ask together, poll time): promising ones alone, then all without waiting, then wait."""
        deadline_s = time.monotonic() + command.poll_time_ms / 1000
        order = self._order()
        with self._lock:
            promising = [queue_id for queue_id in order if queue_id in self._promising]
        for queue_id in promising:
            yield [queue_id], 0
        places = max(1, command.max_messages)
        if places < len(order) or not command.poll_time_ms:
            for start in range(0, len(order), places):
                yield order[start : start + places], 0
        while (left_ms := int((deadline_s - time.monotonic()) * 1000)) > 0:
            yield order[:places], left_ms if places >= len(order) else min(left_ms, POLL_MS_SHARED)
            order = order[places:] + order[:places]

    def _order(self) -> list[int]:
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            found = list(self._queues_of())
            with self._lock:
                self._queue_ids, self._look_at_s = found, now_s + LOOK_FOR_QUEUES_S
        with self._lock:
            start = self._turn % len(self._queue_ids)
            self._turn += 1
            return self._queue_ids[start:] + self._queue_ids[:start]

    def _ask(self, queue_ids: list[int], command: Pop, timeout_ms: int | None) -> list[Answer]:
        """Answers of these queues, each asked for its share; what comes too late is given back."""
        share, more = divmod(command.max_messages, len(queue_ids))
        asked: dict[Future[Answer], Pop] = {}
        answers: list[Answer] = []
        failure: PopstreamError | None = None
        try:
            for place, queue_id in enumerate(queue_ids):
                count = share + (place < more)
                one = msgspec.structs.replace(command, queue_id=queue_id, op_id=new_op_id(), max_messages=count)
                asked[self._pops.send(one, timeout_ms)] = one
            left = set(asked)
            while left:
                is_found = any(answer.messages for answer in answers)
                done, left = wait(left, OTHERS_S if is_found else None, FIRST_COMPLETED)
                if not done:
                    break
                for future in done:
                    error = future.exception()
                    if isinstance(error, PopstreamError):
                        failure = error
                    else:
                        answers.append(future.result())
                        self._note(asked.pop(future), answers[-1])
        except BaseException:
            for answer in answers:
                self._give_up(answer.topic, answer.queue_id, answer.op_id)
            raise
        finally:
            for one in asked.values():
                self._give_up(one.topic, one.queue_id, one.op_id or "")
        if failure is not None:
            if not any(answer.messages for answer in answers):
                raise failure
            LOG.warning("a queue of %s has no answer: %s", command.topic, failure)
        return answers

    def _give_up(self, topic: str, queue_id: int, op_id: str) -> None:
        self._pops.take_back(topic, queue_id, op_id)
        self._pops.ended(op_id)

    def _note(self, one: Pop, answer: Answer) -> None:
        got_count = sum(leased.last - leased.first + 1 for leased in answer.messages)
        with self._lock:
            (self._promising.add if got_count >= one.max_messages else self._promising.discard)(one.queue_id)
