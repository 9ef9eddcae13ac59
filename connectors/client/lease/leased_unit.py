"""A unit of many messages in hand: one lease, and what its consumer has said of each message so far.

The job knows the unit alone. It is acked when every message is done, and comes again as a whole when one of them is
given back, unless that one is sent again by itself. All of it is kept here: a process that is killed loses it, and the
unit comes again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec

from connectors.client.message import Message, MessageState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connectors.client.inner_batch import Unwrapped

__all__ = ["LeasedUnit"]


class LeasedUnit:
    """The messages of one unit. Safe for use by many threads.

    Args:
        message: What is leased.
        unwrapped: What its record carries.
    """

    def __init__(self, message: Message, unwrapped: Sequence[Unwrapped]) -> None:
        self.message = message
        self.messages = [
            Message(
                topic=message.topic,
                queue_id=message.queue_id,
                queue_offset=message.queue_offset,
                handle=message.handle,
                attempt=message.attempt,
                pop_time_ms=message.pop_time_ms,
                next_visible_time_ms=message.next_visible_time_ms,
                settler=message.settler,
                unit=self,
                **msgspec.structs.asdict(one),
            )
            for one in unwrapped
        ]
        message.carries = self
        message.value = None
        self.cause: str | None = None
        """Why it goes to the dead letters when all its messages are done; None: it does not."""
        self._lock = threading.Lock()
        self._open = set(range(len(self.messages)))
        self._owners: dict[int, threading.Thread] = {}

    @property
    def is_begun(self) -> bool:
        """Whether something of it is done, or about to be, and would come twice if all of it came again."""
        return any(message.state is not MessageState.OPEN for message in self.messages)

    def finish(self, message: Message, state: MessageState) -> bool:
        """No more is to be expected of a message; True when it was the last one."""
        with self._lock:
            message.state = state
            was_open = message.inner_index in self._open
            self._open.discard(message.inner_index)
            return was_open and not self._open

    def renewed(self) -> None:
        """The lease has another end, and maybe another handle: so have the messages."""
        for message in self.messages:
            message.handle = self.message.handle
            message.pop_time_ms = self.message.pop_time_ms
            message.next_visible_time_ms = self.message.next_visible_time_ms

    def own(self, message: Message, owner: threading.Thread) -> None:
        """Note who works on a message from now on."""
        self._owners[message.inner_index] = owner

    def is_alive(self) -> bool:
        """Whether everyone still runs who works on a message that is not done."""
        return all(owner.is_alive() or self.messages[index].is_settled for index, owner in list(self._owners.items()))
