"""Consume queues for people: what `popstream queue` shows."""

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from broker_state.consume_queue import (
    ConsumeQueue,
    Get,
    Unit,
    first_unit_since,
    holes,
    last_unit_until,
    unit_at_or_after,
    unit_of_message,
    units_with_key,
)
from broker_state.kernel.queue_state import load_queue
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import RocksStore
from pipelines.build_consume_queue.builder import Queue, read_queues, reader_of
from popstream.wire.command import QueueType
from popstream.wire.failures import Invalid

__all__ = ["BuilderView", "ConsumeQueueView", "FoundMessage", "FoundUnit", "QueueRequest", "views_of"]

SHOWN_MAX = 1_000


class QueueRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="ask", tag="queue"):
    """Which queues of a topic, and which of their units: those at, or first after, what is named.

    `time_ms` finds the first unit stored since and the last one until; `key` the newest units with it; `limit` bounds
    the units with a key, and the runs of holes.
    """

    topic: str
    token: str = ""
    queue_id: int | None = None
    queue_offset: int | None = None
    message_offset: int | None = None
    time_ms: int | None = None
    key_hash: int | None = None
    limit: int = 10


class BuilderView(msgspec.Struct, frozen=True, kw_only=True):
    """How a builder does: what it has not read yet, what the job has not answered, what Delta does not have."""

    queues: int
    behind: int
    open_dispatches: int
    units: int
    delta_behind: int


class FoundMessage(msgspec.Struct, frozen=True):
    """A message inside a unit of many, found by its message offset, key or message id."""

    inner_index: int
    message_offset: int
    message_id: str
    key: str | None
    size_bytes: int


class FoundUnit(msgspec.Struct, frozen=True):
    """A unit, and what it was looked for by; None: there is none, for the reason in `why`.

    `inside` are those of its messages that were looked for; the builder does not know them, but its topic does.
    """

    by: str
    unit: Unit | None
    why: str = ""
    inside: list[FoundMessage] = []


class ConsumeQueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue.

    Attributes:
        end_offset: How far the partition is read.
        commit_position: How far the job knows of it; None: it does not know the queue.
        log_end: The end of the committed log when Kafka was last asked; None: nobody runs who asks.
        holes: Runs of offsets without a record, the first ones.
        hole_count: How many offsets these are, in all runs.
        problem: Why the job refuses to know of it.
    """

    topic: str
    queue_id: int
    topic_id: str
    queue_type: QueueType
    start_offset: int
    end_offset: int
    start_message_base: int
    end_message_base: int
    unit_count: int
    message_count: int
    hole_count: int
    holes: list[tuple[int, int]]
    commit_position: int | None
    log_end: int | None
    problem: str | None = None
    found: list[FoundUnit] = []

    @property
    def lag(self) -> int | None:
        """How many offsets of the log are not read yet."""
        return None if self.log_end is None else max(0, self.log_end - self.end_offset)


def views_of(
    builder_store: RocksStore,
    state: RocksStore,
    request: QueueRequest,
    *,
    log_end: Callable[[Queue], int | None] = lambda _: None,
    problem: Callable[[Queue], str | None] = lambda _: None,
) -> list[ConsumeQueueView]:
    """The queues of a topic with the units that are asked for.

    Raises:
        Invalid: No such queue is built.
    """
    views = [
        _view(record, queue, reader_of(builder_store, queue), state, request, log_end(queue), problem(queue))
        for queue, record in read_queues(builder_store)
        if queue[0] == request.topic and request.queue_id in (None, queue[1])
    ]
    if not views:
        name = request.topic if request.queue_id is None else f"{request.topic}/{request.queue_id}"
        message = f"no queue of {name} is built: is the topic among the message topics of the job?"
        raise Invalid(message, subject=request.topic)
    return views


def _view(
    record: ConsumeQueue,
    queue: Queue,
    get: Get,
    state: RocksStore,
    request: QueueRequest,
    log_end: int | None,
    problem: str | None,
) -> ConsumeQueueView:
    decided = load_queue(Overlay(state.frozen()), *queue)
    limit = min(request.limit, SHOWN_MAX)
    return ConsumeQueueView(
        topic=queue[0],
        queue_id=queue[1],
        topic_id=record.topic_id,
        queue_type=record.queue_type,
        start_offset=record.start_offset,
        end_offset=record.end_offset,
        start_message_base=record.start_message_base,
        end_message_base=record.end_message_base,
        unit_count=record.unit_count,
        message_count=record.message_count,
        hole_count=record.end_offset - record.start_offset - record.unit_count,
        holes=list(islice(holes(record, get, record.start_offset, record.end_offset), limit)),
        commit_position=None if decided is None else decided.record.commit_position,
        log_end=log_end,
        problem=problem,
        found=list(_found(record, get, request, limit)),
    )


def _found(record: ConsumeQueue, get: Get, request: QueueRequest, limit: int) -> Iterator[FoundUnit]:
    if request.queue_offset is not None:
        unit = unit_at_or_after(record, get, request.queue_offset)
        yield _one("at or after the offset", unit)
    if request.message_offset is not None:
        yield _one("with the message", unit_of_message(record, get, request.message_offset))
    if request.time_ms is not None:
        yield _one("first since the time", first_unit_since(record, get, request.time_ms) or "none is so new")
        yield _one("last until the time", last_unit_until(record, get, request.time_ms) or "none is so old")
    if request.key_hash is not None:
        units = list(islice(units_with_key(record, get, request.key_hash), limit))
        yield from (FoundUnit("with the key", unit) for unit in units)
        if not units:
            yield FoundUnit("with the key", None, "none has it")


def _one(by: str, unit: Unit | str) -> FoundUnit:
    return FoundUnit(by, unit) if isinstance(unit, Unit) else FoundUnit(by, None, str(unit))
