"""A queue in a range of the log, taken apart (`recorder`): what comes at its time, and how leases were handled."""

from typing import NamedTuple

from pipelines.tuning.handlings import LaneHandlings
from pipelines.tuning.tally import QueueTally
from popstream.wire.command import Command, Entry

__all__ = ["Carried", "Event", "Item", "RecordedQueue"]


class Item(NamedTuple):
    """A part of an entry: what is asked for neighbours with one handle. Sorts by the place of the entry."""

    number: int
    first: int
    last: int
    group: str
    handle: str
    entry: Entry
    follows: bool = False
    """After a change of the lease its new handle is meant, and not this one."""


class Carried(NamedTuple):
    """Of one record, what is asked for about leases that are not of the range."""

    items: list[Item]


class Event(NamedTuple):
    """What comes at its time: by the queue's clock, and at its place in the log.

    `op_id`: of a pop, which is not in `what`: equal ones of a client are one object.
    """

    now_ms: int
    seq: int
    what: Command | Carried
    op_id: str | None = None


class RecordedQueue:
    """A queue in the range.

    Args:
        topic: Its topic.
        queue_id: Its number.
        commit_offsets: By group, those at the start of the range.
    """

    def __init__(self, topic: str, queue_id: int, commit_offsets: dict[str, int]) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.commit_offsets = commit_offsets
        self.now_ms = 0
        self.records = 0
        self.events: list[Event] = []
        """In order."""
        self.tally = QueueTally(commit_offsets)
        self.handlings: dict[str, LaneHandlings] = {}
        """By group."""
        self.cancelled: set[str] = set()
        """Ids of the pops that somebody cancels."""

    def lane(self, group: str) -> LaneHandlings:
        """Return the handlings of a lane, which may be new."""
        handlings = self.handlings.get(group)
        if handlings is None:
            handlings = self.handlings[group] = LaneHandlings(self.tally.lane(group).numbers)
        return handlings
