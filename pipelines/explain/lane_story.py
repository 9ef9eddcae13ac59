"""Why a lane moves or does not: from its state, and from the message at which its commit offset waits."""

from collections.abc import Iterator
from datetime import tzinfo

import msgspec

from pipelines.control.lane_views import BatchView, LaneDetail, LaneView, QueueView
from pipelines.explain.story import GroupStory
from pipelines.times import duration_text, time_of_day

__all__ = ["LaneStory", "lane_story", "lane_story_lines"]


class LaneStory(msgspec.Struct, frozen=True, kw_only=True):
    """What blocks a lane.

    Attributes:
        topic: The topic of the queue.
        queue_id: The queue.
        group: The group.
        lane: Its counts, parked pops and limits.
        first_offset: The first offset that is not done; None: everything written is done.
        first: The story of that message for the group, if the tables have it.
        is_stuck: Something holds the lane that no pop can change now.
        findings: What was found, the strongest reason first.
    """

    topic: str
    queue_id: int
    group: str
    lane: LaneView
    first_offset: int | None
    first: GroupStory | None
    is_stuck: bool
    findings: list[str]


def lane_story(queue: QueueView, lane: LaneView, first: GroupStory | None, now_ms: int, zone: tzinfo) -> LaneStory:
    """Return the story of a lane whose details are known."""
    detail = lane.detail or LaneDetail(None, [])
    holding = list(_holding(lane, detail, first, now_ms, zone))
    is_done = lane.commit_offset >= queue.commit_position
    return LaneStory(
        topic=queue.topic,
        queue_id=queue.queue_id,
        group=lane.group,
        lane=lane,
        first_offset=None if is_done else lane.commit_offset,
        first=first,
        is_stuck=bool(holding) and not is_done,
        findings=[*holding, *_otherwise(queue, lane, detail, first, is_held=bool(holding))],
    )


def lane_story_lines(story: LaneStory, zone: tzinfo) -> Iterator[str]:
    """Yield the lines of a story; the first one is the verdict."""
    lane = story.lane
    yield f"{story.topic}/{story.queue_id}, group {story.group}: {'held' if story.is_stuck else 'not held'}"
    for finding in story.findings:
        yield f"  => {finding}"
    mode = "orderly" if lane.orderly else "concurrent"
    counts = f"{lane.leased:,} leased, {lane.available:,} waiting for redelivery, {lane.dead_lettered:,} dead letters"
    yield f"  {mode}, done up to {lane.commit_offset:,}, {lane.lag:,} behind what is poppable, {counts}"
    for pop in (lane.detail or LaneDetail(None, [])).waiting:
        client = pop.client_id or "a client without an id"
        yield f"  {client} waits for {pop.max_messages:,} until {time_of_day(pop.until_ms, zone)}"
    for name, limit in (lane.detail or LaneDetail(None, [])).quotas.items():
        yield f"  quota: {name} is {limit:,}; beyond it operations are refused with QUOTA_EXCEEDED"


def _holding(lane: LaneView, detail: LaneDetail, first: GroupStory | None, now_ms: int, zone: tzinfo) -> Iterator[str]:
    """Yield what keeps pops from getting the next message."""
    if detail.paused_until_ms > now_ms:
        until = time_of_day(detail.paused_until_ms, zone)
        yield f"it is paused until {until}: a record had more to do for it than one may"
    if detail.in_flight_max and lane.leased >= detail.in_flight_max:
        limit = f"in_flight_max is {detail.in_flight_max:,}"
        yield f"its in-flight limit is reached: {lane.leased:,} messages are leased, and {limit}"
    if detail.batch is not None and detail.batch.unacked and (detail.batch.free_at_ms or 0) > now_ms:
        yield _blocked(lane, detail.batch, first, now_ms, zone)


def _blocked(lane: LaneView, batch: BatchView, first: GroupStory | None, now_ms: int, zone: tzinfo) -> str:
    member = batch.unacked[0]
    events = first.events if first is not None else []
    holder = next((event.client_id for event in reversed(events) if event.kind == "leased"), None)
    by = f" by {holder}" if holder else ""
    free_ms = batch.free_at_ms or 0
    return (
        f"message {lane.commit_offset:,} blocks it: popped{by} at {time_of_day(batch.pop_time_ms, zone)} with"
        f" {batch.members:,} messages, of which {batch.members - batch.acked:,} are not acked (attempt {member.attempt}"
        f"{', suspended' if member.suspended else ''}); free at {time_of_day(free_ms, zone)},"
        f" in {duration_text(free_ms - now_ms)}, or when all are acked"
    )


def _otherwise(
    queue: QueueView, lane: LaneView, detail: LaneDetail, first: GroupStory | None, *, is_held: bool
) -> Iterator[str]:
    """Yield what else there is to say of a lane."""
    if lane.commit_offset >= queue.commit_position:
        yield "everything that is poppable is done"
        return
    if first is not None and not lane.orderly:
        yield f"its commit offset waits for message {lane.commit_offset:,}: {first.verdict}"
    if is_held:
        return
    fresh = queue.commit_position - lane.next_offset
    if not detail.waiting and (lane.available or fresh > 0):
        ready = f"{lane.available:,} returned and {max(0, fresh):,} new offsets are ready"
        yield f"nobody pops: {ready}, and no pop waits for them"
    elif detail.waiting and lane.leased:
        yield f"{lane.leased:,} messages are being handled, and pops wait: nothing else is ready"
