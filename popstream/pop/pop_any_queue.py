"""Pops of a topic without a queue id: from any of its queues that has messages."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from popstream.deadline import left_s
from popstream.exchange.transport import new_op_id
from popstream.pop.pops import POLL_MS_SHARED
from popstream.wire.base_errors import PopstreamError
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from popstream.pop.pops_of_call import PopsOfCall
    from popstream.wire.answer import Answer
    from popstream.wire.command import Pop

__all__ = ["PopAnyQueue"]

LOG = logging.getLogger(__name__)

REFRESH_QUEUES_S = 30.0
OTHERS_S = 0.1
"""Once one queue has returned messages, how long to wait for the answers of the others; most come together."""
FOUND_NOTHING = frozenset((Reason.NO_MESSAGE, Reason.POLLING_TIMEOUT))


class PopAnyQueue:
    """Chooses the queues of one topic for each pop. Safe for use by many threads.

    Queues whose last pop returned as many messages as it asked for come first; after them each pop begins at another
    queue (RocketMQ, PopMessageProcessor: queue id -1).

    Args:
        queues_of: Returns the queue ids of the topic, at least one.
    """

    def __init__(self, queues_of: Callable[[], Sequence[int]]) -> None:
        self._queues_of = queues_of
        self._lock = threading.Lock()
        self._queue_ids: list[int] = []
        self._refresh_at_s = 0.0
        self._turn = 0
        self._promising: set[int] = set()

    def pop(self, command: Pop, timeout_ms: int | None, call: PopsOfCall) -> list[Answer]:
        """Pop up to `max_messages` from all queues together; return the answers in order of arrival.

        Args:
            command: The pop, without queue and op_id.
            timeout_ms: How long to wait for an answer beyond the poll time.
            call: Sends the pops.

        Raises:
            AnswerTimeout: The job does not answer for some queue, and no other queue returned messages.
            ClientClosed: The consumer was closed between two pops.
            CancelledError: The call was interrupted.
        """
        answers: list[Answer] = []
        for queue_ids, poll_time_ms in self._rounds(command):
            found = self._ask(queue_ids, msgspec.structs.replace(command, poll_time_ms=poll_time_ms), timeout_ms, call)
            answers += found
            is_refused = not any(answer.reason in FOUND_NOTHING for answer in found)
            is_cancelled = any(answer.reason is Reason.CANCELLED for answer in found)
            if any(answer.messages for answer in found) or is_cancelled or (poll_time_ms and is_refused):
                break
        return answers

    def _rounds(self, command: Pop) -> Iterator[tuple[list[int], int]]:
        """Yield (queues to ask together, poll time): promising ones alone, then all without waiting, then waiting.

        There is at least one, also when finding the queues took longer than the poll time.
        """
        deadline_s = time.monotonic() + command.poll_time_ms / 1000
        order = self._order()
        with self._lock:
            promising = [queue_id for queue_id in order if queue_id in self._promising]
        for queue_id in promising:
            yield [queue_id], 0
        has_asked = bool(promising)
        places = max(1, command.max_messages)
        if places < len(order) or not command.poll_time_ms:
            has_asked = True
            for start in range(0, len(order), places):
                yield order[start : start + places], 0
        while (left_ms := int(left_s(deadline_s) * 1000)) or not has_asked:
            has_asked = True
            yield order[:places], left_ms if places >= len(order) else min(left_ms, POLL_MS_SHARED)
            order = order[places:] + order[:places]

    def _order(self) -> list[int]:
        now_s = time.monotonic()
        if now_s >= self._refresh_at_s:
            found = list(self._queues_of())
            with self._lock:
                self._queue_ids, self._refresh_at_s = found, now_s + REFRESH_QUEUES_S
        with self._lock:
            start = self._turn % len(self._queue_ids)
            self._turn += 1
            return self._queue_ids[start:] + self._queue_ids[:start]

    def _ask(self, queue_ids: list[int], command: Pop, timeout_ms: int | None, call: PopsOfCall) -> list[Answer]:
        """Ask each of these queues for its share, and return the answers; later answers are abandoned."""
        share, more = divmod(command.max_messages, len(queue_ids))
        asked: dict[Future[Answer], Pop] = {}
        answers: list[Answer] = []
        failure: PopstreamError | None = None
        for place, queue_id in enumerate(queue_ids):
            count = share + (place < more)
            one = msgspec.structs.replace(command, queue_id=queue_id, op_id=new_op_id(), max_messages=count)
            asked[call.send(one, timeout_ms)] = one
        left = set(asked)
        while left:
            is_found = any(answer.messages for answer in answers)
            done, left = call.wait(left, OTHERS_S if is_found else None)
            if not done:
                break
            for future in done:
                error = future.exception()
                if isinstance(error, PopstreamError):
                    failure = error
                else:
                    answers.append(future.result())
                    self._note(asked.pop(future), answers[-1])
        if failure is not None:
            if not any(answer.messages for answer in answers):
                raise failure
            LOG.warning("a pop of a queue of %s was not answered: %s", command.topic, failure)
        for one in asked.values():
            call.abandon(one.op_id or "")
        return answers

    def _note(self, one: Pop, answer: Answer) -> None:
        got_count = sum(leased.last - leased.first + 1 for leased in answer.messages)
        with self._lock:
            (self._promising.add if got_count >= one.max_messages else self._promising.discard)(one.queue_id)
