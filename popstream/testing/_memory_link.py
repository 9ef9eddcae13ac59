"""A transport's link in memory: it keeps the records that are sent, and a function returns the frames for them."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from popstream.wire.answer import encode_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from popstream.wire.answer import Answer

__all__ = ["MemoryLink", "frame_of"]


def frame_of(answers: Iterable[Answer]) -> bytes:
    """Encode the value of one record of the results topic.

    >>> frame_of([])
    b'{"v":1,"answers":[]}'
    """
    return b'{"v":1,"answers":[' + b",".join(encode_answer(answer) for answer in answers) + b"]}"


class MemoryLink:
    """A `Link` without Kafka.

    Args:
        answer: Takes the key and value of a record, and returns the frames that answer it.
        reply_to: The partition of answers.

    Attributes:
        sent: (key, value) of each record, in order.
        failures: Errors of the next sends, one for each.
        is_closed: Whether it was closed.
    """

    def __init__(
        self, answer: Callable[[bytes, bytes], Iterable[bytes]] = lambda _key, _value: (), reply_to: int = 3
    ) -> None:
        self.sent: list[tuple[bytes, bytes]] = []
        self.failures: list[Exception] = []
        self.is_closed = False
        self._answer = answer
        self._reply_to = reply_to
        self._frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def open(self) -> int:
        """Return the partition of answers."""
        return self._reply_to

    def send(self, key: bytes, value: bytes, on_sent: Callable[[Exception | None], None]) -> None:
        """Keep the record, confirm it, and deliver the frames that answer it."""
        if self.failures:
            on_sent(self.failures.pop(0))
            return
        self.sent.append((key, value))
        on_sent(None)
        for frame in self._answer(key, value):
            self.bring(frame)

    def bring(self, frame: bytes) -> None:
        """Deliver a frame."""
        self._frames.put(frame)

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return the frames that have arrived."""
        try:
            frames = [self._frames.get(timeout=max(timeout_s, 0.001))]
        except queue.Empty:
            return []
        while not self._frames.empty():
            frames.append(self._frames.get())
        return frames

    def close(self, _timeout_s: float) -> None:
        """Record that it was closed."""
        self.is_closed = True
