"""Operations in flight: matched with their answers by op_id, and sent again while no answer comes.

No thread and no Kafka here: `Transport` calls `accept` with each frame it receives, and `due` with the time.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec

from popstream.errors import AnswerTimeout, ClientClosed
from popstream.exchange.broker_clock import BrokerClock
from popstream.settings import RESEND_WINDOW_MS
from popstream.wire.answer import DIVIDED_LISTS, Answer, decode_frame
from popstream.wire.decode_errors import DECODE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PendingOperation", "PendingOperations", "answers_of", "join_parts"]

LOG = logging.getLogger(__name__)

AnswerFuture = Future[Answer]


def join_parts(parts: Iterable[Answer]) -> Answer:
    """Join the parts of one answer: lists are concatenated by `part`, other fields are those of the first part.

    >>> from popstream.wire.reason import Reason
    >>> fields = {"op_id": "a", "type": "ack", "code": 0, "reason": Reason.OK, "applied": True, "parts": 2}
    >>> piece = Answer(topic="orders", queue_id=0, now_ms=1, **fields)
    >>> first, second = (msgspec.structs.replace(piece, part=n, handles=[f"h{n}"]) for n in (0, 1))
    >>> join_parts([second, first]).handles
    ['h0', 'h1']
    """
    ordered = sorted(parts, key=lambda piece: piece.part)
    first = ordered[0]
    if len(ordered) == 1:
        return first
    joined: dict[str, Any] = {
        name: [item for piece in ordered for item in getattr(piece, name)] for name in DIVIDED_LISTS
    }
    joined["commit_offsets"] = {group: offset for piece in ordered for group, offset in piece.commit_offsets.items()}
    return msgspec.structs.replace(first, part=0, parts=1, **joined)


class _RawFrame(msgspec.Struct):
    answers: list[msgspec.Raw]


_raw_frame_decoder = msgspec.json.Decoder(_RawFrame)
_answer_decoder = msgspec.json.Decoder(Answer)


def answers_of(frame: bytes) -> list[Answer]:
    """Return the answers in a frame; those of a newer job that this client cannot decode are skipped with a warning.

    >>> answers_of(b'{"v":1,"answers":[{"op_id":"a","type":"pop","code":0,"reason":"NEW_REASON"}]}')
    []
    """
    try:
        return decode_frame(frame)
    except DECODE_ERRORS as error:
        LOG.warning("cannot decode a frame of %d bytes as a whole: %s", len(frame), error)
    try:
        raw = _raw_frame_decoder.decode(frame).answers
    except DECODE_ERRORS:
        return []
    answers = []
    for piece in raw:
        try:
            answers.append(_answer_decoder.decode(piece))
        except DECODE_ERRORS as error:
            LOG.warning("cannot decode an answer: %s", error)
    return answers


class PendingOperation(msgspec.Struct, kw_only=True, eq=False):
    """One operation in flight. Times are monotonic, in seconds."""

    op_id: str
    what: str
    key: bytes
    value: bytes
    future: AnswerFuture
    first_sent_s: float
    next_send_s: float
    resend_after_s: float
    deadline_s: float
    parts: dict[int, Answer]
    sent_count: int = 1
    in_log: bool = False


class PendingOperations:
    """The operations in flight. Safe for use by many threads; futures are completed outside the lock.

    Args:
        client_id: Name of the client.
        resend_after_s_max: Upper bound of the wait between two sends of an operation, which doubles each time.
        broker_clock: Learns from each answer.
    """

    def __init__(self, client_id: str, resend_after_s_max: float, broker_clock: BrokerClock) -> None:
        self._client_id = client_id
        self._lock = threading.Lock()
        self._waiting: dict[str, PendingOperation] = {}
        self._resend_after_s_max = resend_after_s_max
        self._is_closed = False
        self._is_failing = False
        """Whether the last outcome of a send was a failure: of an outage only the first one is a warning."""
        self._broker_clock = broker_clock

    def __len__(self) -> int:
        """Count the operations in flight."""
        return len(self._waiting)

    def add(self, pending: PendingOperation) -> None:
        """Add an operation; its future can no longer be cancelled.

        Raises:
            ClientClosed: The client is closed.
            ValueError: An operation with this op_id is in flight.
        """
        pending.future.set_running_or_notify_cancel()
        with self._lock:
            if self._is_closed:
                raise ClientClosed.of("transport", self._client_id)
            if pending.op_id in self._waiting:
                message = f"an operation with op_id {pending.op_id!r} is in flight"
                raise ValueError(message)
            self._waiting[pending.op_id] = pending

    def accept(self, frame: bytes, now_s: float) -> None:
        """Complete the operations that a frame answers; other answers, and repeated ones, are ignored."""
        completed: list[tuple[AnswerFuture, Answer]] = []
        answers = answers_of(frame)
        if answers:
            self._broker_clock.learn(max(answer.now_ms for answer in answers), now_s)
        with self._lock:
            for answer in answers:
                pending = self._waiting.get(answer.op_id)
                if pending is None:
                    continue
                pending.parts.setdefault(answer.part, answer)
                if len(pending.parts) >= answer.parts:
                    del self._waiting[answer.op_id]
                    completed.append((pending.future, join_parts(pending.parts.values())))
        for future, answer in completed:
            future.set_result(answer)

    def sent(self, op_id: str, error: Exception | None, now_s: float, retry_after_s: float) -> None:
        """Record that Kafka has confirmed a send, or that it failed: then it is due again after `retry_after_s`."""
        with self._lock:
            was_failing, self._is_failing = self._is_failing, error is not None
            pending = self._waiting.get(op_id)
            if pending is None:
                return
            if error is None:
                pending.in_log = True
            else:
                level = logging.DEBUG if was_failing else logging.WARNING
                LOG.log(level, "could not write %s, sending it again: %s", pending.what, error)
                pending.next_send_s = min(pending.next_send_s, now_s + retry_after_s)

    def due(self, now_s: float) -> list[PendingOperation]:
        """Fail the operations that are past their deadline, and return those to send again now."""
        expired: list[PendingOperation] = []
        again: list[PendingOperation] = []
        with self._lock:
            for pending in list(self._waiting.values()):
                if now_s >= pending.deadline_s:
                    del self._waiting[pending.op_id]
                    expired.append(pending)
                elif now_s >= pending.next_send_s:
                    pending.next_send_s = float("inf")
                    if now_s - pending.first_sent_s < RESEND_WINDOW_MS / 1000:
                        pending.resend_after_s = min(2 * pending.resend_after_s, self._resend_after_s_max)
                        pending.next_send_s = now_s + pending.resend_after_s
                        pending.sent_count += 1
                        again.append(pending)
        for pending in expired:
            pending.future.set_exception(_timeout(pending, now_s))
        return again

    def wait_s(self, now_s: float, longest_s: float) -> float:
        """Return the seconds until something is due, at most `longest_s`."""
        with self._lock:
            moments = [min(pending.next_send_s, pending.deadline_s) for pending in self._waiting.values()]
        return max(0.0, min([longest_s, *(moment - now_s for moment in moments)]))

    def close(self) -> None:
        """Fail all operations with `ClientClosed`, and refuse later ones."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = list(self._waiting.values()), {}
        for pending in waiting:
            message = f"the client was closed before {pending.what} was answered; its outcome is unknown"
            pending.future.set_exception(ClientClosed(message, subject=pending.op_id))


def _timeout(pending: PendingOperation, now_s: float) -> AnswerTimeout:
    waited_s = now_s - pending.first_sent_s
    state = "it is in the log and will be decided" if pending.in_log else "whether it reached the log is unknown"
    sent = f"sent {pending.sent_count} times"
    return AnswerTimeout(
        f"no answer to {pending.what} in {waited_s:.1f} s, {sent}; {state}. Is the job running?",
        op_ids=[pending.op_id],
        in_log=pending.in_log,
        subject=pending.op_id,
    )
