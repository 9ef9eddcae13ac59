"""What the job notes about messages that go to the dead-letter topic."""

import msgspec

__all__ = ["DeadLetter"]


class DeadLetter(msgspec.Struct, frozen=True):
    """Messages for the dead-letter topic; the copier reads them from their own topic before this entry goes."""

    topic: str
    queue_id: int
    group: str
    first: int
    last: int
    reason: str
    attempts: int
    epoch: int
    pop_time_ms: int
    at_ms: int
    partition: int
    kafka_offset: int
