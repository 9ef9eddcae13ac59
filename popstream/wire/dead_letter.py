"""The entry of the outbox for messages that go to the dead-letter topic."""

import msgspec

__all__ = ["DeadLetter"]


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages first..last of one queue, which a group gave up; the job copies them before the entry is deleted."""

    topic: str
    queue_id: int
    group: str
    first: int
    """First queue offset."""
    last: int
    """Last queue offset, inclusive."""
    reason: str
    """`attempt_limit`, or the cause that the consumer gave."""
    attempts: int
    """Deliveries so far."""
    epoch: int
    """Epoch of the last delivery."""
    pop_time_ms: int
    """Time of the last pop, or of its last change."""
    at_ms: int
    """When the messages were given up."""
    partition: int
    """Partition of the ops topic with the record that caused it."""
    kafka_offset: int
    """Offset of that record."""
    cause: str | None = None
    """Why its last delivery was released, as in the table `deliveries`; None: its lease expired, or `reason` says."""
