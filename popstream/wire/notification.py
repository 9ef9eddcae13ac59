"""What the job tells about a lane without being asked: there is something to pop again."""

import msgspec

__all__ = ["Notification"]


class Notification(msgspec.Struct, frozen=True):
    """A lane had nothing to pop and has now."""

    topic: str
    queue_id: int
    group: str
    at_ms: int
