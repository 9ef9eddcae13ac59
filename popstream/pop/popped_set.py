"""The messages of one pop until they are handed out: which of them may be, and which must be released.

Pure bookkeeping: no clock, no thread, no lock.

A concurrent group may receive the messages in any order. An orderly group receives a message when those before it are
finished. As soon as one of them will be redelivered - it was released, its record cannot be read now, its lease has
ended - the set is *broken*, and all later messages must be redelivered after it.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from popstream.message import MessageState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popstream.message import Message

__all__ = ["PoppedSet"]

COMES_AGAIN = (MessageState.RELEASED, MessageState.LAPSED)


class PoppedSet:
    """The messages of one pop, by queue offset; their records are fetched part by part.

    Args:
        messages: Leased messages without their records.
        is_orderly: Whether the group consumes in order.

    Attributes:
        ahead_count: Number of messages, from the next one on, whose records are read ahead of their part.
    """

    def __init__(self, messages: Sequence[Message], *, is_orderly: bool) -> None:
        self.ahead_count = 0
        self._waiting = deque(messages)
        self._is_orderly = is_orderly
        self._handed_out: list[Message] = []
        self._last_out: list[Message] = []
        self._held_back: deque[Message] = deque()
        self._is_filling = False
        self._has_lapsed = False

    @property
    def is_ready(self) -> bool:
        """Whether the records of another part may be fetched."""
        if self._is_filling or not self._waiting:
            return False
        return not self._is_orderly or all(message.state is MessageState.FINISHED for message in self._handed_out)

    @property
    def is_pending(self) -> bool:
        """Whether records of it are fetched, or will be."""
        return self._is_filling or bool(self._waiting)

    @property
    def is_broken(self) -> bool:
        """Whether an orderly set has a message that will be redelivered, which the later ones must follow."""
        return self._is_orderly and (
            self._has_lapsed or any(message.state in COMES_AGAIN for message in self._handed_out)
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing of it will be handed out any more."""
        is_at_work = self._is_orderly and any(message.state is MessageState.OPEN for message in self._handed_out)
        return not self._waiting and not self._is_filling and not is_at_work

    def holds(self, message: Message) -> bool:
        """Tell whether a caller works on a message of this orderly set."""
        return any(message is other for other in self._handed_out)

    def expect(self, count: int) -> list[Message]:
        """Return up to `count` messages whose records are not read ahead yet, and now are."""
        expected = [*islice(self._waiting, self.ahead_count, self.ahead_count + count)]
        self.ahead_count += len(expected)
        return expected

    def take_part(self, count: int, is_live: Callable[[Message], bool]) -> list[Message]:
        """Take up to `count` live messages, to fetch their records; unless there are none, call `filled` afterwards."""
        waiting_count = len(self._waiting)
        part: list[Message] = []
        while self._waiting and len(part) < count:
            if is_live(self._waiting[0]):
                part.append(self._waiting.popleft())
            elif not self._is_orderly:
                self._waiting.popleft()  # its lease has ended: the job redelivers it
            else:
                self._has_lapsed = True
                break
        self.ahead_count = max(0, self.ahead_count - waiting_count + len(self._waiting))
        self._is_filling = bool(part)
        return part

    def filled(self, part: Sequence[Message], left: Sequence[Message]) -> list[Message]:
        """Record that the records of a part are here, except for `left`; return the messages that must be released.

        They are those of an orderly set that follow a message which will be redelivered.
        """
        self._is_filling = False
        self._waiting.extendleft(reversed(left))
        if not self._is_orderly:
            return []
        fetched = part[: len(part) - len(left)]
        end = next((place for place, message in enumerate(fetched) if message.state in COMES_AGAIN), len(fetched))
        self._handed_out = list(fetched[: end + 1])
        return [message for message in fetched[end:] if not message.is_settled]

    def hand_out(self, messages: Sequence[Message], count: int) -> list[Message]:
        """Return the first `count` of the fetched messages; `next_out` returns the others, which are of a unit."""
        self._held_back = deque(messages)
        return self._take_out(count)

    def next_out(self, count: int, is_live: Callable[[Message], bool]) -> list[Message]:
        """Return messages that were held back, once those before them are finished and none will be redelivered."""
        is_next = self._held_back and all(message.state is MessageState.FINISHED for message in self._last_out)
        if not is_next or self.is_broken:
            return []
        if not is_live(self._held_back[0]):
            self._has_lapsed = True
            return []
        return self._take_out(count)

    def rest(self) -> list[Message]:
        """Remove and return the messages that were not handed out."""
        rest = [message for message in (*self._held_back, *self._waiting) if not message.is_settled]
        self._held_back.clear()
        self._waiting.clear()
        self.ahead_count = 0
        return rest

    def _take_out(self, count: int) -> list[Message]:
        taken = [self._held_back.popleft() for _ in range(min(count, len(self._held_back)))]
        self._last_out = [message for message in taken if not message.is_settled]
        return self._last_out
