"""The history of a message as a person would tell it: a line for each event, and the verdict."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta, tzinfo

import msgspec

from broker_state.audit import StepCause
from pipelines.explain.leases import DONE, Lease, leases_of, outcome_text, raised_text, released_text
from pipelines.explain.message_events import Event, EventKind, MessageRows, events_of, groups_of
from pipelines.times import day_text, duration_text, time_of_day, zone_name

__all__ = ["EventText", "GroupStory", "GroupText", "MessageStory", "StoryText", "story_lines", "story_of", "story_text"]

REASONS = {
    "STALE_HANDLE": "the message had been delivered again since, or the lane was reset",
    "SUPERSEDED": "the lease had been changed since by a newer handle",
    "UNKNOWN_HANDLE": "no lease of this lane has such a handle",
    "DUPLICATE_ENTRY": "the same operation names it twice",
    "ALREADY_ACKED": "it was acked already",
    "OUTSIDE_POP": "the handle is of a pop without this message",
    "NO_PERMISSION": "the signature of the handle is missing or wrong",
    "WRONG_MODE": "the lane has the other mode",
    "INVALID_PARAMETER": "the operation is not valid",
    "BELOW_MIN": "retention has deleted it",
    "ABOVE_MAX": "it is not written yet",
}


class GroupStory(msgspec.Struct, frozen=True, kw_only=True):
    """What one group had to do with the message.

    Attributes:
        group: The group.
        state: `done`, `dead`, `leased`, `waiting` or `fresh`.
        deliveries: How often it was delivered.
        verdict: One sentence.
        events: What happened, in order.
    """

    group: str
    state: str
    deliveries: int
    verdict: str
    events: list[Event]


class MessageStory(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a message.

    Attributes:
        topic: Its topic.
        queue_id: Its queue.
        queue_offset: Its queue offset.
        unit: Its row of `consume_queue` by column, if the job builds the queue.
        events: What concerns all groups.
        groups: What concerns each group.
        notes: What else there is to know: that retention has deleted a part of the story, perhaps.
    """

    topic: str
    queue_id: int
    queue_offset: int
    unit: dict[str, str | int | bool | None] | None
    events: list[Event]
    groups: list[GroupStory]
    notes: list[str] = []


def story_of(rows: MessageRows, groups: Sequence[str] | None, now_ms: int, zone: tzinfo) -> MessageStory:
    """Return the story of a message, for some groups, or for all that had to do with it."""
    shared = events_of(rows, None)
    return MessageStory(
        topic=rows.topic,
        queue_id=rows.queue_id,
        queue_offset=rows.queue_offset,
        unit=None if rows.unit is None else rows.unit._asdict(),
        events=shared,
        groups=[_group_story(rows, shared, group, now_ms, zone) for group in groups or groups_of(rows)],
        notes=_notes(rows),
    )


class EventText(msgspec.Struct, frozen=True):
    """An event as a sentence: when, in ms since 1970, and what happened."""

    at_ms: int
    text: str


class GroupText(msgspec.Struct, frozen=True, kw_only=True):
    """What one group had to do with the message, in sentences. `state`, `verdict`: as of its `GroupStory`."""

    group: str
    state: str
    verdict: str
    events: list[EventText]


class StoryText(msgspec.Struct, frozen=True):
    """The history of a message in sentences: what concerns all groups, and what concerns each."""

    events: list[EventText]
    groups: list[GroupText]


def story_text(story: MessageStory, zone: tzinfo) -> StoryText:
    """Return the sentences of a story."""
    groups = []
    for group in story.groups:
        holders = {lease.epoch: lease for lease in leases_of(group.events)}
        events = [
            EventText(event.at_ms, _text(event, holders.get(-1 if event.epoch is None else event.epoch), zone))
            for event in group.events
        ]
        groups.append(GroupText(group=group.group, state=group.state, verdict=group.verdict, events=events))
    return StoryText([EventText(event.at_ms, _shared_text(event, story)) for event in story.events], groups)


def story_lines(story: MessageStory, zone: tzinfo) -> Iterator[str]:
    """Yield the lines of a story."""
    sentences = story_text(story, zone)
    first = next(iter([*sentences.events, *(event for group in sentences.groups for event in group.events)]), None)
    when = "" if first is None else f", {day_text(first.at_ms, zone)}, times in {zone_name(first.at_ms, zone)}"
    yield f"{story.topic}/{story.queue_id}/{story.queue_offset}{when}"
    day = "" if first is None else day_text(first.at_ms, zone)
    for event in sentences.events:
        yield _line(event, zone, day)
    for group in sentences.groups:
        yield ""
        yield f"group {group.group}"
        for event in group.events:
            yield _line(event, zone, day)
        yield f"  => {group.verdict}"
    for note in story.notes:
        yield ""
        yield note


def cut_text(first_days: Mapping[str, date]) -> str:
    """Return the sentence about rows that retention has deleted.

    >>> cut_text({"deliveries": date(2026, 11, 1), "operations": date(2026, 10, 1)})
    'retention has deleted deliveries before 2026-11-01 and operations before 2026-10-01'
    """
    return "retention has deleted " + " and ".join(f"{table} before {day}" for table, day in first_days.items())


def _notes(rows: MessageRows) -> list[str]:
    """Return what may be missing: a message that was written after all that was deleted has its whole story."""
    written_ms = 0 if rows.unit is None else rows.unit.store_time_ms
    missing = {
        table: day
        for table, day in rows.first_days.items()
        if (day - date(1970, 1, 1)) // timedelta(milliseconds=1) > written_ms
    }
    return [f"Perhaps not the whole story: {cut_text(missing)} (UTC)."] if missing else []


def _line(event: EventText, zone: tzinfo, day: str) -> str:
    own_day = day_text(event.at_ms, zone)
    date = "" if own_day == day else f"{own_day} "
    return f"  {date}{time_of_day(event.at_ms, zone)}  {event.text}"


def _shared_text(event: Event, story: MessageStory) -> str:
    if event.kind is EventKind.DISPATCHED:
        return f"dispatched, with {_range(event)}"
    if event.kind is EventKind.POPPABLE:
        return f"poppable: the commit position of the queue moved from {event.first:,} to {event.last:,}"
    if event.kind is not EventKind.WRITTEN or story.unit is None:
        return event.kind.replace("_", " ")
    unit = story.unit
    parts = [f"written by its producer: {unit['size_bytes']:,} bytes"]
    if unit["tag_hash"]:
        parts.append(f"tag hash {unit['tag_hash']}")
    if isinstance(count := unit["inner_count"], int) and count > 1:
        parts.append(f"a unit of {count:,} messages from message offset {unit['message_base']:,}")
    if not unit["is_readable"]:
        parts.append("UNREADABLE: the headers of its inner batch are malformed")
    if unit["duplicate_of"] is not None:
        parts.append(f"a duplicate of offset {unit['duplicate_of']:,}, so that no group gets it")
    return ", ".join(parts)


def _text(event: Event, lease: Lease | None, zone: tzinfo) -> str:
    client = event.client_id or "a client without an id"
    holder = client if lease is None else lease.holder
    until = "" if event.until_ms is None else time_of_day(event.until_ms, zone)
    since = "" if lease is None else f", {duration_text(max(0, event.at_ms - lease.began_ms))} after it was delivered"
    match event.kind:
        case EventKind.LEASED:
            length = duration_text(max(0, (event.until_ms or event.at_ms) - event.at_ms))
            return f"leased to {client} until {until}, for {length}: attempt {event.attempt}, with {_range(event)}"
        case EventKind.EXTENDED:
            return f"{client} changed the lease to end at {until}{since}"
        case EventKind.RELEASED_BY_CLIENT:
            again = f"; it can be popped again from {until}" if (event.until_ms or 0) > event.at_ms else ""
            failed = raised_text(event.cause)
            return f"{holder} released it{f': {failed}' if failed else ''}{since}{again}"
        case EventKind.RELEASED | EventKind.EXPIRED:
            how = "expired" if event.kind is EventKind.EXPIRED else f"ended: {released_text(event.cause)}"
            return f"the lease of {holder} {how}{since}"
        case EventKind.ACKED:
            return f"acked by {client}{since}{_lateness(event, lease)}"
        case EventKind.DEAD_LETTERED:
            is_rejected = event.client_id is not None and event.cause != StepCause.ATTEMPT_LIMIT
            by = f"rejected by {client}, so that it " if is_rejected else ""
            return f"{by}became a dead letter: {event.cause}, in attempt {event.attempt}{since}"
        case EventKind.REFUSED:
            return _refusal(event, lease, client) + since
        case _:
            return _of_the_lane(event, client)


def _of_the_lane(event: Event, client: str) -> str:
    match event.kind:
        case EventKind.EXPIRED_FROM_LOG:
            return "deleted by the retention of its topic before it was done"
        case EventKind.RESET:
            return f"{event.cause} ended every lease of the lane, and forgot its attempts"
        case EventKind.REDRIVE_ANNOUNCED:
            return f"a redrive was announced, {event.cause}"
        case EventKind.REPEATED:
            return f"{client} sent its {event.operation} again, and got the first answer again"
        case EventKind.PASSED:
            return f"the commit offset of the group moved from {event.first:,} to {event.last:,}, past the message"
        case EventKind.MOVED_BACK:
            return f"the commit offset of the group moved back from {event.first:,} to {event.last:,}"
        case _:
            return event.kind.replace("_", " ")


def _refusal(event: Event, lease: Lease | None, client: str) -> str:
    why = REASONS.get(event.reason or "", "")
    which = "" if lease is None else f" of delivery {lease.number}"
    return f"{event.operation}{which} by {client} refused: {event.reason}" + (f", {why}" if why else "")


def _lateness(event: Event, lease: Lease | None) -> str:
    if lease is None or lease.expired_ms is None or lease.expired_ms > event.at_ms:
        return ""
    by = duration_text(event.at_ms - lease.expired_ms)
    return f", {by} after the lease had expired; nobody had got the message since"


def _range(event: Event) -> str:
    if event.first is None or event.last is None or event.first == event.last:
        return "no other message"
    return f"{event.first:,}..{event.last:,}"


def _group_story(rows: MessageRows, shared: Sequence[Event], group: str, now_ms: int, zone: tzinfo) -> GroupStory:
    events = events_of(rows, group)
    leases = leases_of(events)
    state, ending = _ending(rows, shared, events, leases, now_ms, zone)
    verdict = f"{outcome_text(leases)}. {ending}" if leases else ending
    return GroupStory(group=group, state=state, deliveries=len(leases), verdict=verdict, events=events)


def _ending(
    rows: MessageRows,
    shared: Sequence[Event],
    events: Sequence[Event],
    leases: Sequence[Lease],
    now_ms: int,
    zone: tzinfo,
) -> tuple[str, str]:
    """Return the state of the message for the group, and a sentence about it."""
    passed = _last_move(events)
    if not leases:
        return _without_delivery(rows, shared, passed, now_ms, zone)
    lease = leases[-1]
    end = lease.end
    if lease.is_forgotten:
        if passed is not None:
            return "done", "A reset skipped it: it counts as done."
        return "waiting", "The lane was moved back or reset: it will be delivered again."
    if end is not None and end.kind in DONE:
        return _done(end, lease, shared, zone, is_passed=passed is not None)
    if end is None:
        until = time_of_day(lease.until_ms, zone)
        if now_ms < lease.until_ms:
            left = duration_text(lease.until_ms - now_ms)
            return "leased", f"{lease.holder} holds it until {until}, for another {left}."
        return "leased", f"{lease.holder} held it until {until}; what came after that is not in the tables yet."
    if end.kind is EventKind.RELEASED_BY_CLIENT and (end.until_ms or 0) > now_ms:
        return "waiting", f"It backs off until {time_of_day(end.until_ms or 0, zone)}."
    since = duration_text(max(0, now_ms - max(end.at_ms, end.until_ms or 0)))
    return "waiting", f"It waits for a pop of the group, for {since} now."


def _done(end: Event, lease: Lease, shared: Sequence[Event], zone: tzinfo, *, is_passed: bool) -> tuple[str, str]:
    if end.kind is EventKind.DEAD_LETTERED:
        return "dead", f"A dead letter since {time_of_day(end.at_ms, zone)} ({end.cause}): it counts as done."
    if end.kind is EventKind.EXPIRED_FROM_LOG:
        return "done", "The retention of its topic has deleted it: it counts as done."
    total = ""
    if shared:
        total = f", {duration_text(max(0, end.at_ms - shared[0].at_ms))} after it was {shared[0].kind}"
    waits = "" if is_passed else "; the commit offset waits for a message before it"
    return "done", f"Done by {end.client_id or lease.holder} at {time_of_day(end.at_ms, zone)}{total}{waits}."


def _without_delivery(
    rows: MessageRows, shared: Sequence[Event], passed: Event | None, now_ms: int, zone: tzinfo
) -> tuple[str, str]:
    unit = rows.unit
    if unit is not None and unit.duplicate_of is not None:
        return "done", f"Not delivered: it repeats the deduplication id of offset {unit.duplicate_of:,}."
    if passed is not None:
        return "done", (
            "Not delivered, and done: passed over by the tags of a pop, skipped by a reset, or deleted by retention."
        )
    if unit is not None and (unit.deliver_at_ms or 0) > now_ms:
        return "fresh", f"Not delivered yet: its delivery time is {time_of_day(unit.deliver_at_ms or 0, zone)}."
    if not any(event.kind is EventKind.POPPABLE for event in shared):
        return "fresh", "Not delivered yet: the commit position of the queue has not passed it."
    return "fresh", "Not delivered yet: no pop of the group has come to it."


def _last_move(events: Sequence[Event]) -> Event | None:
    """Return the move of the commit offset past the message, unless it moved back since."""
    moves = [event for event in events if event.kind in (EventKind.PASSED, EventKind.MOVED_BACK)]
    return moves[-1] if moves and moves[-1].kind is EventKind.PASSED else None
