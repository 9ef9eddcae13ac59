"""The view of consume queues that `popstream queue` shows."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated

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
from broker_state.kernel.context.queue_state import load_queue
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import RocksStore
from pipelines.build_consume_queue.builder_records import read_queues, reader_of
from pipelines.build_consume_queue.stored_ids import read_id_counts
from pipelines.control_request import ControlRequest
from popstream.wire.base_errors import Invalid
from popstream.wire.command import QueueType
from popstream.wire.queue_name import QueueName

__all__ = ["BuilderStatus", "ConsumeQueueView", "FoundMessage", "FoundUnit", "QueueRequest", "views_of"]

SHOWN_MAX = 1_000
"""Upper bound of `QueueRequest.limit`."""


class QueueRequest(ControlRequest, frozen=True, kw_only=True, tag="queue"):
    """Asks for queues of a topic, and for some of their units.

    Attributes:
        queue_id: One queue; None: all of the topic.
        queue_offset: Find the unit at this offset, or the first one after it.
        message_offset: Find the unit with this message.
        time_ms: Find the first unit stored at or after this time, and the last one at or before it.
        key_hash: Find the newest units with this hash of a key, or of the key or message id of a message inside. The
            message id of a plain record is not indexed: its queue offset, which `SendResult` has, is its name.
        limit: At most this number of units with the key, and of runs of holes.
    """

    topic: str
    queue_id: int | None = None
    queue_offset: int | None = None
    message_offset: int | None = None
    time_ms: int | None = None
    key_hash: int | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=SHOWN_MAX)] = 10


class BuilderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the builder.

    Attributes:
        queues: Queues of the chosen topics.
        behind: Offsets of the logs that are not read yet.
        open_dispatches: Operations that the job has not answered.
        units: Units built since the start.
        delta_behind: WriteBatches whose units are not in Delta yet.
    """

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
    """The result of one search.

    Attributes:
        by: The search, for people.
        unit: The unit, or None for the reason in `why`.
        inside: The messages of the unit that match, read from the topic: the builder does not store them.
    """

    by: str
    unit: Unit | None
    why: str = ""
    inside: list[FoundMessage] = []


class ConsumeQueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue.

    Attributes:
        end_offset: The offset up to which the partition is read.
        commit_position: The queue's commit position in the job; None if the job does not know the queue.
        log_end: The end of the committed log when Kafka was last asked; None if the builder does not run.
        holes: The first runs of offsets without a record.
        hole_count: Number of offsets in all runs of holes.
        problem: Why the job refused an operation of the queue.
        forgotten_ids: Deduplication ids that were forgotten within the window, because there were too many.
        found: The results of the searches.
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
    forgotten_ids: int = 0
    found: list[FoundUnit] = []

    @property
    def lag(self) -> int | None:
        """Number of offsets of the log that are not read yet; None if the end of the log is unknown."""
        return None if self.log_end is None else max(0, self.log_end - self.end_offset)


def views_of(
    builder_store: RocksStore,
    state: RocksStore,
    request: QueueRequest,
    *,
    log_end: Callable[[QueueName], int | None] = lambda _: None,
    problem: Callable[[QueueName], str | None] = lambda _: None,
) -> list[ConsumeQueueView]:
    """Return the queues of a topic with the units that the request asks for.

    Raises:
        Invalid: The builder has no such queue.
    """
    views = [
        _view(record, queue, builder_store, state, request, log_end(queue), problem(queue))
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
    queue: QueueName,
    builder_store: RocksStore,
    state: RocksStore,
    request: QueueRequest,
    log_end: int | None,
    problem: str | None,
) -> ConsumeQueueView:
    get = reader_of(builder_store, queue)
    decided = load_queue(Overlay(state.frozen()), *queue)
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
        holes=list(islice(holes(record, get, record.start_offset, record.end_offset), request.limit)),
        commit_position=None if decided is None else decided.record.commit_position,
        log_end=log_end,
        problem=problem,
        forgotten_ids=read_id_counts(builder_store, queue).forgotten_early,
        found=list(_search(record, get, request)),
    )


def _search(record: ConsumeQueue, get: Get, request: QueueRequest) -> Iterator[FoundUnit]:
    if request.queue_offset is not None:
        unit = unit_at_or_after(record, get, request.queue_offset)
        yield _result("at or after the offset", unit)
    if request.message_offset is not None:
        yield _result("with the message", unit_of_message(record, get, request.message_offset))
    if request.time_ms is not None:
        yield _result("first since the time", first_unit_since(record, get, request.time_ms) or "no unit is that new")
        yield _result("last until the time", last_unit_until(record, get, request.time_ms) or "no unit is that old")
    if request.key_hash is not None:
        units = list(islice(units_with_key(record, get, request.key_hash), request.limit))
        yield from (FoundUnit("with the key", unit) for unit in units)
        if not units:
            why = "no unit has it as key, or inside as key or message id; ids of plain records are not indexed"
            yield FoundUnit("with the key", None, why)


def _result(by: str, unit: Unit | str) -> FoundUnit:
    return FoundUnit(by, unit) if isinstance(unit, Unit) else FoundUnit(by, None, str(unit))
