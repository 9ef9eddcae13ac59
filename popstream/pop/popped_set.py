"""What one pop brought, on its way to the caller: which messages may be handed out, and which must go back.

Pure bookkeeping: no clock, no thread, no lock.

A concurrent group may have any of them at any time. In an orderly group a message is handed out when those before it
are finished; as soon as one of them comes again - it was given back, its record cannot be read now, its lease ended -
the set is *broken*, and all that follows must come again behind it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from popstream.message import MessageState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popstream.message import Message

__all__ = ["PoppedSet"]


class PoppedSet:
    """The messages of one pop, by queue offset; their records are brought part by part.

    Args:
        messages: Leased, without their records.
        is_orderly: Whether the group consumes in order.
    """

    def __init__(self, messages: Sequence[Message], *, is_orderly: bool) -> None:
        self._waiting = deque(messages)
        self._is_orderly = is_orderly
        self._handed_out: list[Message] = []
        self._last_out: list[Message] = []
        self._held_back: deque[Message] = deque()
        self._is_filling = False
        self._has_lapsed = False

    @property
    def is_ready(self) -> bool:
        """Whether a part may be taken."""
        if self._is_filling or not self._waiting:
            return False
        return not self._is_orderly or all(message.state is MessageState.FINISHED for message in self._handed_out)

    @property
    def is_broken(self) -> bool:
        """Whether something comes again that what waits must follow."""
        return self._is_orderly and (
            self._has_lapsed or any(message.state is MessageState.RETURNED for message in self._handed_out)
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        is_at_work = self._is_orderly and any(not message.is_settled for message in self._handed_out)
        return not self._waiting and not self._is_filling and not is_at_work

    def holds(self, message: Message) -> bool:
        """Whether the caller works on a message of this orderly set."""
        return any(message is other for other in self._handed_out)

    def take_part(self, count: int, is_live: Callable[[Message], bool]) -> list[Message]:
        """Up to `count` live messages whose records are to be brought now; `filled` follows, unless there are none."""
        part: list[Message] = []
        while self._waiting and len(part) < count:
            if is_live(self._waiting[0]):
                part.append(self._waiting.popleft())
            elif not self._is_orderly:
                self._waiting.popleft()  # its lease is over: it comes again by itself
            else:
                self._has_lapsed = True
                break
        self._is_filling = bool(part)
        return part

    def filled(self, part: Sequence[Message], left: Sequence[Message]) -> list[Message]:
        """The records are here, but for those of `left`; gives what must go back, because one before it does."""
        self._is_filling = False
        self._waiting.extendleft(reversed(left))
        if not self._is_orderly:
            return []
        brought = part[: len(part) - len(left)]
        states = [message.state for message in brought]
        end = states.index(MessageState.RETURNED) if MessageState.RETURNED in states else len(brought)
        self._handed_out = list(brought[: end + 1])
        return [message for message in brought[end:] if not message.is_settled]

    def hand_out(self, messages: Sequence[Message], count: int) -> list[Message]:
        """Of what was brought, and may be handed out, the first `count`; `next_out` gives the others (of a unit)."""
        self._held_back = deque(messages)
        return self._take_out(count)

    def next_out(self, count: int, is_live: Callable[[Message], bool]) -> list[Message]:
        """Messages that were held back, if those before them are finished and nothing comes again before them."""
        is_next = self._held_back and all(message.state is MessageState.FINISHED for message in self._last_out)
        if not is_next or self.is_broken:
            return []
        if not is_live(self._held_back[0]):
            self._has_lapsed = True
            return []
        return self._take_out(count)

    def _take_out(self, count: int) -> list[Message]:
        taken = [self._held_back.popleft() for _ in range(min(count, len(self._held_back)))]
        self._last_out = [message for message in taken if not message.is_settled]
        return self._last_out

    def rest(self) -> list[Message]:
        """What waits, or is held back; it is no longer this set's."""
        rest = [message for message in (*self._held_back, *self._waiting) if not message.is_settled]
        self._held_back.clear()
        self._waiting.clear()
        return rest
