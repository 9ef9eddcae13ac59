"""Single pops that a caller waits for, of one queue or of whichever has something."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from popstream.errors import NotDeclared, Refused
from popstream.lease.entries import RETURNED
from popstream.message import PopResult
from popstream.pop.any_queue import AnyQueue
from popstream.pop.popped_set import PoppedSet
from popstream.pop.pops import POP_RESULTS, UNREADABLE
from popstream.wire.failures import Corrupt, PopstreamError
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from popstream.lease.held_messages import HeldMessages
    from popstream.lease.settlement import Settlement
    from popstream.message import Message
    from popstream.pop.pops import Filled, Pops
    from popstream.wire.answer import Answer
    from popstream.wire.command import Pop

__all__ = ["PopCalls", "require"]

LOG = logging.getLogger(__name__)


class PopCalls:
    """The part of a consumer behind `pop`. Safe for use by many threads.

    Args:
        pops: Sends and fills.
        held: Is told who works on what.
        settlement: Gives back what is not handed out.
        queues_of: Asks for the queues of a topic.
    """

    def __init__(
        self, pops: Pops, held: HeldMessages, settlement: Settlement, queues_of: Callable[[str], Sequence[int]]
    ) -> None:
        self._pops = pops
        self._held = held
        self._settlement = settlement
        self._queues_of = queues_of
        self._lock = threading.Lock()
        self._any_queue: dict[str, AnyQueue] = {}

    def pop(self, command: Pop, *, any_queue: bool, timeout_ms: int | None, is_renewed: bool) -> PopResult:
        """Send, wait, bring the records. What cannot be handed out goes back, all of it when this raises."""
        if any_queue:
            answers = self._any_queue_of(command.topic).pop(command, timeout_ms)
        else:
            answers = [self._pop_one(command, timeout_ms)]
        try:
            return self._collect(answers, is_renewed=is_renewed, is_orderly=command.order)
        finally:
            # Not before what they leased is in hand: `close` waits for it.
            for answer in answers:
                self._pops.ended(answer.op_id)

    def _any_queue_of(self, topic: str) -> AnyQueue:
        with self._lock:
            if topic not in self._any_queue:
                self._any_queue[topic] = AnyQueue(lambda: self._queues_of(topic), self._pops)
            return self._any_queue[topic]

    def _pop_one(self, command: Pop, timeout_ms: int | None) -> Answer:
        answered = self._pops.send(command, timeout_ms)
        try:
            return answered.result()
        except BaseException:
            # Nobody will work on what this pop leases: not after a time-out, nor an interrupt.
            self._pops.take_back(command.topic, command.queue_id, command.op_id or "")
            self._pops.ended(command.op_id or "")
            raise

    def _collect(self, answers: Sequence[Answer], *, is_renewed: bool, is_orderly: bool) -> PopResult:
        # Queues of a topic that nobody has declared are no matter as long as one is.
        known = [answer for answer in answers if answer.reason is not Reason.TOPIC_NOT_EXIST] or answers
        with_messages = [answer for answer in known if answer.messages]
        told = with_messages[0] if with_messages else require(known[-1], POP_RESULTS)
        leased: list[list[Message]] = []
        filled: list[Filled] = []
        failure: PopstreamError | None = None
        try:
            leased += (self._pops.lease(answer, is_renewed=is_renewed) for answer in with_messages)
            for answer, messages in zip(with_messages, leased, strict=True):
                try:
                    filled.append(self._fill(messages, is_orderly=is_orderly))
                except PopstreamError as error:
                    failure = error
                    self._give_back(answer, messages, error)
        except BaseException:
            # Nobody will work on any of it after an interrupt.
            for answer, messages in zip(with_messages, leased, strict=False):
                self._give_back(answer, messages, None)
            raise
        if failure is not None:
            if not filled:
                raise failure
            LOG.warning("some of what was popped cannot be handed out: %s", failure)
        if is_renewed:
            # Without renewal the lease ends by itself, whoever has the messages now.
            self._held.own((message for part in filled for message in part.messages), threading.current_thread())
        return PopResult(
            op_id=told.op_id,
            reason=told.reason,
            code=told.code,
            messages=[message for part in filled for message in part.messages],
            gone_count=sum(part.gone_count for part in filled),
            late_count=sum(part.late_count for part in filled),
        )

    def _fill(self, messages: list[Message], *, is_orderly: bool) -> Filled:
        """The records; of an orderly queue nothing is handed out that is behind a message which comes again."""
        popped = PoppedSet(messages, is_orderly=is_orderly)
        part = popped.take_part(len(messages), lambda _: True)
        filled = self._pops.fill(part)
        behind = popped.filled(part, filled.left)
        if behind:
            self._settlement.change(((message, RETURNED) for message in behind), keeps=False)
            filled.messages[:] = [message for message in filled.messages if not message.is_settled]
        return filled

    def _give_back(self, answer: Answer, messages: Sequence[Message], error: PopstreamError | None) -> None:
        if isinstance(error, Corrupt):
            self._settlement.change(((message, UNREADABLE) for message in messages), keeps=False)
        else:
            self._held.release(messages)
            self._pops.take_back(answer.topic, answer.queue_id, answer.op_id)


def require(answer: Answer, expected: Collection[Reason]) -> Answer:
    """The answer, if its reason is one of those expected.

    Raises:
        NotDeclared: The job does not know the queue.
        Refused: It is another reason.
    """
    if answer.reason in expected:
        return answer
    if answer.reason is Reason.TOPIC_NOT_EXIST:
        message = f"the job does not know {answer.topic}/{answer.queue_id}: nobody has declared this queue yet"
        raise NotDeclared(message, subject=f"{answer.topic}/{answer.queue_id}")
    raise Refused(answer)
