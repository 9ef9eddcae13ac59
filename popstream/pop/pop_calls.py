"""Single pops that a caller waits for, of one queue or of any queue of a topic."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from popstream.errors import NotDeclared, Refused
from popstream.lease.entries import RELEASED_UNCOUNTED
from popstream.message import PopResult
from popstream.pop.pop_any_queue import PopAnyQueue
from popstream.pop.popped_set import PoppedSet
from popstream.pop.pops import POP_RESULTS
from popstream.pop.pops_of_call import PopsOfCall
from popstream.pop.record_filler import release_after
from popstream.wire.base_errors import PopstreamError
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from popstream.lease.leases import Leases
    from popstream.message import Message
    from popstream.pop.pops import Pops
    from popstream.pop.record_filler import Filled
    from popstream.wire.answer import Answer
    from popstream.wire.command import Pop

__all__ = ["PopCalls", "require"]

LOG = logging.getLogger(__name__)


class PopCalls:
    """Carries out `Consumer.pop`. Safe for use by many threads.

    Args:
        pops: Sends the pops.
        leases: The leases of the consumer.
        queues_of: Returns the queue ids of a topic.
    """

    def __init__(self, pops: Pops, leases: Leases, queues_of: Callable[[str], Sequence[int]]) -> None:
        self._pops = pops
        self._held = leases.held
        self._settlement = leases.settlement
        self._queues_of = queues_of
        self._lock = threading.Lock()
        self._any_queue: dict[str, PopAnyQueue] = {}

    def new_call(self) -> PopsOfCall:
        """Return a call for `pop`; the messages with renewed leases belong to the calling thread."""
        return PopsOfCall(self._pops, self._held)

    def pop(
        self, command: Pop, call: PopsOfCall, *, any_queue: bool, timeout_ms: int | None, is_renewed: bool
    ) -> PopResult:
        """Send a pop, wait for its answer, and fetch the records; when this raises, all messages are released."""
        with call:
            if any_queue:
                answers = self._any_queue_of(command.topic).pop(command, timeout_ms, call)
            else:
                done, _ = call.wait({call.send(command, timeout_ms)})
                answers = [answered.result() for answered in done]
            # Queues that are not declared do not matter, as long as one queue of the topic is.
            known = [answer for answer in answers if answer.reason is not Reason.TOPIC_NOT_EXIST] or answers
            with_messages = [answer for answer in known if answer.messages]
            answer_shown = with_messages[0] if with_messages else require(known[-1], POP_RESULTS)
            leased = [call.lease(answer, is_renewed=is_renewed) for answer in with_messages]
            filled, failure = self._fill_all([*filter(None, leased)], is_orderly=command.order)
            if is_renewed:
                # Other leases simply expire: their messages may be with another thread by then.
                self._held.own((message for part in filled for message in part.messages), call.owner)
        if failure is not None:
            if not filled:
                raise failure
            LOG.warning("some popped messages cannot be handed out: %s", failure)
        return PopResult(
            op_id=answer_shown.op_id,
            reason=answer_shown.reason,
            code=answer_shown.code,
            messages=[message for part in filled for message in part.messages],
            gone_count=sum(part.gone_count for part in filled),
            late_count=sum(part.late_count for part in filled),
        )

    def _any_queue_of(self, topic: str) -> PopAnyQueue:
        with self._lock:
            if topic not in self._any_queue:
                self._any_queue[topic] = PopAnyQueue(lambda: self._queues_of(topic))
            return self._any_queue[topic]

    def _fill_all(
        self, leased: Sequence[list[Message]], *, is_orderly: bool
    ) -> tuple[list[Filled], PopstreamError | None]:
        """Fetch the records; when this fails for the messages of a queue, release them, and return the error too."""
        filled: list[Filled] = []
        failure: PopstreamError | None = None
        for messages in leased:
            try:
                filled.append(self._fill(messages, is_orderly=is_orderly))
            except PopstreamError as error:
                failure = error
                self._settlement.change(((message, release_after(error)) for message in messages), keeps=False)
        return filled, failure

    def _fill(self, messages: list[Message], *, is_orderly: bool) -> Filled:
        """Fetch the records; in an orderly queue, release the messages behind one that will be redelivered."""
        popped = PoppedSet(messages, is_orderly=is_orderly)
        part = popped.take_part(len(messages), lambda _: True)
        filled = self._pops.filler.fill(part)
        behind = popped.filled(part, filled.left)
        if behind:
            self._settlement.change(((message, RELEASED_UNCOUNTED) for message in behind), keeps=False)
            filled.messages[:] = [message for message in filled.messages if not message.is_settled]
        return filled


def require(answer: Answer, expected: Collection[Reason]) -> Answer:
    """Return the answer, if its reason is one of those expected.

    Raises:
        NotDeclared: The job does not know the queue.
        Refused: The answer has another reason.
    """
    if answer.reason in expected:
        return answer
    if answer.reason is Reason.TOPIC_NOT_EXIST:
        raise NotDeclared.of(answer)
    raise Refused(answer)
