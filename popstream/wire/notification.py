"""Notifications, which the job sends unasked: a lane has messages to pop again."""

import msgspec

__all__ = ["Notification"]


class Notification(msgspec.Struct, frozen=True):
    """A lane that was empty or blocked has become poppable."""

    topic: str
    queue_id: int
    group: str
    at_ms: int
