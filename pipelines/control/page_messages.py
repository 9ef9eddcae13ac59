"""Requests for pages of lanes and queues, and for rates, and their answers: what the status page shows.

Pages are cut by the job, so that a reader with a phone gets fifty rows of a hundred thousand.
"""

from typing import Annotated, Literal

import msgspec

from pipelines.control_request import ControlRequest

__all__ = ["LanePage", "LaneRow", "LanesRequest", "QueuePage", "QueueRow", "QueuesRequest", "RatesRequest"]

PAGE_MAX = 500
"""Rows of a page at most."""

Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
Skip = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]


class LanesRequest(ControlRequest, frozen=True, kw_only=True, tag="lanes"):
    """Asks for a page of all lanes.

    Attributes:
        search: Only lanes whose topic or group has this text.
        order: What comes first: the greatest lag, the most messages in flight, the oldest message, or by name.
        skip: Lanes before the page.
        limit: Lanes of the page at most.
    """

    search: str = ""
    order: Literal["lag", "in_flight", "oldest", "name"] = "lag"
    skip: Skip = 0
    limit: Limit = 50


class QueuesRequest(ControlRequest, frozen=True, kw_only=True, tag="queues"):
    """Asks for a page of all queues, by name.

    Attributes:
        search: Only queues whose topic has this text.
        skip: Queues before the page.
        limit: Queues of the page at most.
    """

    search: str = ""
    skip: Skip = 0
    limit: Limit = 50


class RatesRequest(ControlRequest, frozen=True, kw_only=True, tag="rates"):
    """Asks for rates and durations of the last ten minutes."""


class LaneRow(msgspec.Struct, frozen=True, kw_only=True):
    """One lane as the status page shows it.

    Attributes:
        topic: The topic of its queue.
        queue_id: Its queue.
        group: Its group.
        is_orderly: Whether it is orderly; None: no pop has said so.
        commit_offset: Everything below it is done.
        lag: Queue offsets that are not done.
        in_flight: Of these, leased.
        available: Of these, waiting for redelivery.
        dead_lettered: Messages given up since the lane began.
        oldest_at_ms: When the oldest message that is not done was dispatched, in ms since 1970; 0: all are done.
        waiting: Pops that wait.
        waiting_clients: The clients of the first of them, each once.
        held_by: What keeps pops from getting the next message: `batch` in flight of an orderly lane, `pause`, or
            `in_flight_max`; empty: nothing.
        held_since_ms: Since when, in ms since 1970; None: the state does not keep it, as of a pause and of the limit.
        held_until_ms: Until when at most, in ms since 1970; None: of the limit.
    """

    topic: str
    queue_id: int
    group: str
    is_orderly: bool | None
    commit_offset: int
    lag: int
    in_flight: int
    available: int
    dead_lettered: int
    oldest_at_ms: int
    waiting: int
    waiting_clients: list[str]
    held_by: str = ""
    held_since_ms: int | None = None
    held_until_ms: int | None = None


class LanePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some lanes, and how many there are of those that were asked for."""

    lanes: list[LaneRow]
    total: int


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue as the status page shows it. A position is the queue offset that comes next.

    Attributes:
        topic: Its topic.
        queue_id: Its number, which is that of the partition.
        queue_type: Its type.
        min_offset: The first offset that retention has left, as far as the job knows.
        commit_position: Offsets below it can be popped.
        lanes: Groups that have popped it.
        built_to: Offsets below it are read by the builder; None: the job does not build the queue.
        log_end: The end of the partition when Kafka was last asked; None: not known.
        messages: Messages that the builder has found; None: the job does not build the queue.
        problem: Why the job refused an operation of the queue.
    """

    topic: str
    queue_id: int
    queue_type: str
    min_offset: int
    commit_position: int
    lanes: int
    built_to: int | None = None
    log_end: int | None = None
    messages: int | None = None
    problem: str | None = None


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some queues, and how many there are of those that were asked for."""

    queues: list[QueueRow]
    total: int
