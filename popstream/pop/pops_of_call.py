"""The pops that one call of `Consumer.pop` sends; when the call ends, however it does, none of them is in flight."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from types import TracebackType

    from popstream.lease.held_messages import HeldMessages
    from popstream.message import Message
    from popstream.pop.pops import Pops
    from popstream.wire.answer import Answer
    from popstream.wire.command import Pop

__all__ = ["PopsOfCall"]


class _Sent(msgspec.Struct):
    command: Pop
    answered: Future[Answer] | None = None
    messages: list[Message] = []

    @property
    def may_lease(self) -> bool:
        """Whether it has leased messages, or may do so later."""
        if self.answered is None or not self.answered.done() or self.answered.exception() is not None:
            return True
        return bool(self.answered.result().messages)


class PopsOfCall:
    """A context manager. When the block raises, nobody takes the messages: they are released, also those to come.

    A pop is in flight until the block ends, since `Pops.close` waits until its messages are held.

    Args:
        pops: Sends the pops.
        held: The held messages.

    Attributes:
        owner: The thread to which messages with renewed leases belong: the one that has made this.
    """

    def __init__(self, pops: Pops, held: HeldMessages) -> None:
        self._pops = pops
        self._held = held
        self._sent: dict[str, _Sent] = {}
        self._interrupted: Future[None] = Future()
        self.owner = threading.current_thread()

    def send(self, command: Pop, timeout_ms: int | None) -> Future[Answer]:
        """Send a pop, which has an op_id.

        Raises:
            ClientClosed: The consumer or its transport is closed.
            CancelledError: The call was interrupted.
        """
        self._require_uninterrupted()
        op_id = command.op_id or ""
        sent = self._sent[op_id] = _Sent(command)  # before it is sent: an interrupt may come at any moment
        try:
            sent.answered = self._pops.send(command, timeout_ms)
        except Exception:
            del self._sent[op_id]
            raise
        return sent.answered

    def wait(
        self, answers: set[Future[Answer]], timeout_s: float | None = None
    ) -> tuple[set[Future[Answer]], set[Future[Answer]]]:
        """Wait for one of these answers; return those that have come, none after the time-out, and the others.

        Raises:
            CancelledError: The call was interrupted.
        """
        either: set[Future[Any]] = {*answers, self._interrupted}
        wait(either, timeout_s, FIRST_COMPLETED)
        self._require_uninterrupted()
        done = {answered for answered in answers if answered.done()}
        return done, answers - done

    def interrupt(self) -> None:
        """End the call, from another thread, at most once."""
        self._interrupted.set_result(None)

    def lease(self, answer: Answer, *, is_renewed: bool) -> list[Message]:
        """Return the messages that an answer leases, without their records."""
        messages = self._pops.lease(answer, is_renewed=is_renewed)
        self._sent[answer.op_id].messages = messages
        return messages

    def abandon(self, op_id: str) -> None:
        """Await an answer no longer; the messages that it brings are released."""
        self._give_up(self._sent[op_id])
        del self._sent[op_id]

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the pops."""
        for sent in self._sent.values():
            if error is not None and sent.may_lease:
                self._give_up(sent)
            else:
                self._pops.ended(sent.command.op_id or "")

    def _require_uninterrupted(self) -> None:
        if self._interrupted.done():
            raise CancelledError

    def _give_up(self, sent: _Sent) -> None:
        command, op_id = sent.command, sent.command.op_id or ""
        self._held.release(sent.messages)
        try:
            self._pops.abandon(command.topic, command.queue_id, op_id)
        finally:
            self._pops.ended(op_id)
