"""A link without Kafka, for tests: what is sent is kept, and answers come from a function."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from popstream.wire.answer import encode_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from popstream.wire.answer import Answer

__all__ = ["MemoryLink", "frame_of"]


def frame_of(answers: Iterable[Answer]) -> bytes:
    """Value of one record of the results topic.

    >>> frame_of([])
    b'{"v":1,"answers":[]}'
    """
    return b'{"v":1,"answers":[' + b",".join(encode_answer(answer) for answer in answers) + b"]}"


class MemoryLink:
    """Keeps what is sent, and brings the frames that `answer` gives for it.

    Args:
        answer: Takes key and value of a record, gives the frames it leads to.
        reply_to: Partition that it claims to read.

    Attributes:
        sent: (key, value) of every record, in order.
        failures: Errors that the next sends fail with, one each.
    """

    def __init__(
        self, answer: Callable[[bytes, bytes], Iterable[bytes]] = lambda _key, _value: (), reply_to: int = 3
    ) -> None:
        """Start empty."""
        self.sent: list[tuple[bytes, bytes]] = []
        self.failures: list[Exception] = []
        self.is_closed = False
        self._answer = answer
        self._reply_to = reply_to
        self._frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def open(self) -> int:
        """Give the partition."""
        return self._reply_to

    def send(self, key: bytes, value: bytes, on_sent: Callable[[Exception | None], None]) -> None:
        """Keep the record, confirm it, and bring what it leads to."""
        if self.failures:
            on_sent(self.failures.pop(0))
            return
        self.sent.append((key, value))
        on_sent(None)
        for frame in self._answer(key, value):
            self.bring(frame)

    def bring(self, frame: bytes) -> None:
        """Let a frame arrive."""
        self._frames.put(frame)

    def receive(self, timeout_s: float) -> list[bytes]:
        """Frames that have arrived."""
        try:
            frames = [self._frames.get(timeout=max(timeout_s, 0.001))]
        except queue.Empty:
            return []
        while not self._frames.empty():
            frames.append(self._frames.get())
        return frames

    def close(self) -> None:
        """Note that it was closed."""
        self.is_closed = True
