"""The same requests to RocketMQ's shadow and to popstream, and why their outcomes may differ.

A message that RocketMQ revives gets a copy in a retry topic; popstream offers the message itself again. So a request
for a copy is one for the message that was first sent, and a revive must find it poppable again, its attempt one higher
than the copy's reconsume count.

`parted` keeps, for each lane, the rules by which the two sides have come to hold something different there: from then
on they may hand out different messages. A message that has not parted must have the same count of deliveries on both.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from popstream.wire.answer import Answer
from popstream.wire.reason import Reason
from tests.conformance.conformance_verdict import Comparison
from tests.conformance.kernel.kernel_broker import (
    Changing,
    KernelBroker,
    KernelOutcome,
    Lane,
    RocketHandle,
    offsets_of,
    tag_number,
)
from tests.conformance.rocketmq.broker import Popped, Release, Revived, RocketBroker, RocketPop, retry_topic_of
from tests.conformance.rocketmq.order_info_manager import counts_others, shown_counts
from tests.conformance.rules import (
    CHANGE_OUTSIDE_ITS_POP,
    EQUAL_DEADLINE,
    FENCED_HANDLES,
    IN_PLACE,
    INIT_MAX,
    NEVER_LOST,
    OWN_COUNT,
    RANGE_CHECKED,
    RESET_AT_ONCE,
    SUSPEND_IN_ORDER,
    TRUE_WAKE_UP,
    rule_of,
)

__all__ = ["BothAnswers", "BothPops", "RocketChange", "SideBySide"]

_MESSAGES_MAX = 10_000

Message = tuple[str, str, int, int]
"""(group, normal topic, queue id, offset) where it was first sent."""


class RocketChange(NamedTuple):
    """A change request; `lane` has the real topic."""

    lane: Lane
    offset: int
    handle: RocketHandle
    invisible_time_ms: int
    suspend: bool = False


class BothAnswers(NamedTuple):
    """What RocketMQ answers to an ack or a change by its rules, what popstream does; None: it has no such queue."""

    rocketmq: dict[str, int | None]
    ours: dict[str, int | None] | None
    outcome: KernelOutcome | None
    rules: list[str]


class BothPops(NamedTuple):
    """Both answers to a pop; of popstream one for each queue, None while it waits."""

    rocketmq: Popped
    answers: dict[int, Answer | None]
    rules: list[str]

    @property
    def ours(self) -> list[tuple[int, int, int]]:
        """(queue id, offset, attempt) of popstream's messages."""
        return [
            (queue_id, offset, attempt)
            for queue_id, answer in self.answers.items()
            if answer is not None
            for offset, attempt in offsets_of(answer)
        ]


class SideBySide:
    """One broker of RocketMQ and one of popstream."""

    def __init__(self, release: Release, config: dict[str, Any], now_ms: int, comparison: Comparison) -> None:
        self.rocketmq = RocketBroker(release, config)
        self.broker = KernelBroker(now_ms)
        self.changed: dict[Lane, dict[int, int]] = {}
        """Next visible times that popstream has taken over, of the batch of an orderly lane."""
        self.refused: dict[Lane, dict[int, str]] = {}
        """Offsets of such a batch whose time RocketMQ has taken over and popstream refused, with the rule."""
        self.lost: set[Message] = set()
        """Messages that RocketMQ has lost by a change to an equal deadline."""
        self._comparison = comparison
        self._parted: dict[Lane, list[str]] = {}
        self._parted_messages: set[Message] = set()
        self._beyond: set[Lane] = set()
        """Orderly lanes whose consumer offset RocketMQ has moved beyond the queue."""
        self._where = ""

    @property
    def now_ms(self) -> int:
        """The clock of both."""
        return self.broker.now_ms

    def at(self, where: str) -> None:
        """Name the step that follows, for failures."""
        self._where = where

    def part(self, lane: Lane, rule: str) -> None:
        """From now on the lane differs, by `rule`."""
        known = self._parted.setdefault(lane, [])
        if rule not in known:
            known.append(rule)

    def rules(self, lane: Lane) -> list[str]:
        """Why what the two sides hold of a lane may differ."""
        found = list(self._parted.get(lane, []))
        if lane in self._beyond:
            found.append(RANGE_CHECKED)
        if lane in self.rocketmq.resets:
            found.append(RESET_AT_ONCE)
        return found

    def is_orderly(self, lane: Lane) -> bool:
        """Whether the lane is orderly in popstream."""
        state = self.broker.lane(lane)
        return state is not None and bool(state["orderly"])

    # Queues and offsets.

    def send(self, topic: str, queue_id: int, tags: Sequence[str | None]) -> tuple[list[int], list[int]]:
        """Append messages: RocketMQ's offsets and popstream's."""
        both = self.rocketmq.send(topic, queue_id, list(tags)), self.broker.send(topic, queue_id, tags)
        for lane in [lane for lane in self._beyond if (lane[0], lane[2]) == (topic, queue_id)]:
            offset = self.rocketmq.consumer_offset(lane)
            if offset <= self.broker.end_offset(topic, queue_id):
                # What was refused for want of a message is good now, and RocketMQ goes on from there.
                self.broker.reset_offset(lane, offset)
            self._note_beyond(lane)
        return both

    def set_range(self, topic: str, queue_id: int, first: int, end: int) -> None:
        """A queue holds [first, end)."""
        self.rocketmq.set_range(topic, queue_id, first, end)
        self.broker.set_range(topic, queue_id, first, end)

    def commit(self, lane: Lane, offset: int) -> tuple[int, int, list[str]]:
        """An offset is stored by hand: both codes."""
        self.rocketmq.commit(lane, offset)
        return 0, *self._reset_ours(lane, offset, is_accepted=True)

    def reset(self, lane: Lane, offset: int) -> tuple[int, int, list[str]]:
        """An administrator's reset: both codes, and the rule when popstream refuses it."""
        code = self.rocketmq.reset(lane, offset)
        if not code and not self.is_orderly(lane):
            # RocketMQ's records live on, and the other queues of the group read again what they read last.
            for other in {lane, *(known for known in self._lanes() if known[:2] == lane[:2])}:
                self.part(other, RESET_AT_ONCE)
                written = range(self.rocketmq.end(other[0], other[2]))
                self._parted_messages |= {(lane[1], lane[0], other[2], at) for at in written}
        return code, *self._reset_ours(lane, offset, is_accepted=not code)

    def _reset_ours(self, lane: Lane, offset: int, *, is_accepted: bool) -> tuple[int, list[str]]:
        reason = self.broker.reset_offset(lane, offset)
        queue = self.broker.pair.queue(lane[0], lane[2])
        if reason is not Reason.OK and is_accepted and queue is not None:
            nearest = min(max(offset, queue["min_offset"]), queue["commit_position"])
            self.broker.reset_offset(lane, nearest)  # where RocketMQ ends up with the next pop
        self.changed.pop(lane, None)
        self.refused.pop(lane, None)
        self._note_beyond(lane)
        return (0, []) if reason is Reason.OK else (1, [RANGE_CHECKED])

    def _note_beyond(self, lane: Lane) -> None:
        is_beyond = self.rocketmq.consumer_offset(lane) > self.rocketmq.end(lane[0], lane[2])
        (self._beyond.add if is_beyond else self._beyond.discard)(lane)

    def _lanes(self) -> Iterable[Lane]:
        for (topic, queue_id), queue in self.broker.pair.queues().items():
            for group in queue["lanes"]:
                yield topic, group, queue_id

    # Pop.

    def pop(self, request: RocketPop, *, poll_time_ms: int = 0) -> BothPops:
        """Pop on both sides; popstream from RocketMQ's queues in its order."""
        popped = self.rocketmq.pop(request, self.now_ms)
        answers: dict[int, Answer | None] = {}
        left = request.max_messages
        for queue_id in popped.visited:
            lane = (request.topic, request.group, queue_id)
            if request.init_max and self.broker.lane(lane) is None:
                self._begin_at_the_end(lane, request, popped.began.get(queue_id))
            answer = answers[queue_id] = self._pop_ours(lane, request, left, poll_time_ms)
            left -= len(list(offsets_of(answer))) if answer is not None else 0
            self._note_beyond(lane)
            if not left:
                break
        both = BothPops(popped, answers, [])
        for queue_id in popped.visited:
            both.rules.extend(self.rules((request.topic, request.group, queue_id)))
        both.rules.extend(self._rules_of_pop(request, both))
        return both

    def pop_that_waits(self, request: RocketPop, poll_time_ms: int, *, until_ms: int) -> BothPops:
        """Pop from one queue of popstream now, and from RocketMQ at `until_ms`, when it had an answer."""
        lane = (request.topic, request.group, request.queue_id)
        parked = self._pop_ours(lane, request, request.max_messages, poll_time_ms)
        early, late = (parked if self.now_ms < until_ms else None), None
        if parked is None:
            early = self._answer_while_waiting(lane, until_ms - 1)
            late = self._answer_while_waiting(lane, until_ms)
        answer = parked or early or late
        if answer is not None and answer.handle is not None:
            self.broker.keep_handle(lane, answer, until_ms if request.order else None)
        if early is not None:
            # RocketMQ wakes who waits too early, and never for what it has revived.
            self.part(lane, TRUE_WAKE_UP if request.order else IN_PLACE)
        self.broker.now_ms = until_ms
        self.revive()
        both = BothPops(self.rocketmq.pop(request, until_ms), {request.queue_id: answer}, self.rules(lane))
        both.rules.extend(self._rules_of_pop(request, both))
        return both

    def _answer_while_waiting(self, lane: Lane, until_ms: int) -> Answer | None:
        """The answer to a pop that waits, if it comes until then: deadline by deadline, as the ticks of a job come."""
        known = set(self.broker.pair.answers)
        for at_ms in [*self.broker.deadlines(lane), until_ms]:
            if self.now_ms < at_ms <= until_ms:
                self.broker.now_ms = at_ms
                self.broker.tick(lane[0], lane[2])
        fresh = (told for op_id, told in self.broker.pair.answers.items() if op_id not in known)
        return next((told for told in fresh if told.type == "pop"), None)

    def stored_batch(self, lane: Lane) -> dict[str, Any] | None:
        """popstream's batch of an orderly lane under the names of RocketMQ's file."""
        batch = self.broker.batch(lane)
        if batch is None:
            return None
        members = batch["members"]
        offsets = list(members)
        acked = sum(member["acked"] << index for index, member in enumerate(members.values()))
        return {
            "popTime": batch["pop_time"],
            "i": batch["invisible"],
            "o": [offset - offsets[0] if index else offset for index, offset in enumerate(offsets)],
            "cm": acked,
            "ot": {str(offset): ms for offset, ms in self.changed.get(lane, {}).items()},
            "oc": {str(offset): count for offset, count in batch["counts"].items()},
            "a": batch["attempt_id"],
        }

    def comparable_batches(
        self, lane: Lane, rocketmq: dict[str, Any], ours: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """Both without times that nobody reads, those of acked members, and that popstream refused; by which rules."""
        batch, refused = self.broker.batch(lane), self.refused.get(lane, {})
        members = batch["members"] if batch is not None else {}
        done = {str(offset) for offset, member in members.items() if member["acked"]}
        left_out = done | {str(offset) for offset in refused}
        used = [rule for offset, rule in refused.items() if str(offset) not in done]
        plain = [
            {**entry, "ot": {offset: ms for offset, ms in (entry["ot"] or {}).items() if offset not in left_out}}
            for entry in (rocketmq, ours)
        ]
        return plain[0], plain[1], used

    def _pop_ours(self, lane: Lane, request: RocketPop, count: int, poll_time_ms: int = 0) -> Answer | None:
        answer = self.broker.pop(
            lane,
            count=count,
            invisible_time_ms=request.invisible_time_ms,
            order=request.order,
            attempt_id=request.attempt_id,
            tags=None if request.tag is None else [tag_number(request.tag)],
            poll_time_ms=poll_time_ms,
        )
        if answer is not None and answer.messages:
            self.changed.pop(lane, None)
            self.refused.pop(lane, None)
        return answer

    def _begin_at_the_end(self, lane: Lane, request: RocketPop, began: int | None) -> None:
        """The first pop of a group that wants the end; afterwards popstream goes on from where RocketMQ began."""
        answer = self.broker.pop(
            lane,
            count=request.max_messages,
            invisible_time_ms=request.invisible_time_ms,
            order=request.order,
            init="max",
        )
        got = [] if answer is None else list(offsets_of(answer))
        end = self.broker.end_offset(lane[0], lane[2])
        self._comparison.compare(
            f"{self._where}, where the group begins", rocketmq=began, ours=got or end, rules=[INIT_MAX]
        )
        if began is not None and began != end:
            self.broker.reset_offset(lane, began)

    def _rules_of_pop(self, request: RocketPop, both: BothPops) -> list[str]:
        if not request.order:
            return self._compare_deliveries(request, both)
        for queue_id in both.rocketmq.visited:
            offsets = [message.offset for message in both.rocketmq.messages if message.queue_id == queue_id]
            if counts_others(both.rocketmq.order_counts, queue_id, offsets):
                return [OWN_COUNT]
        return []

    def _compare_deliveries(self, request: RocketPop, both: BothPops) -> list[str]:
        """Note which messages have parted; the rules why the two sides may hand out different ones."""
        group, topic = request.group, request.topic
        theirs = {
            (group, topic, m.original.queue_id, m.original.offset): m.original.reconsume_times
            for m in both.rocketmq.messages
        }
        ours = {(group, topic, queue_id, offset): attempt - 1 for queue_id, offset, attempt in both.ours}
        for message in theirs.keys() & ours.keys() - self._parted_messages:
            self._comparison.compare(
                f"{self._where}, deliveries of {message} before", rocketmq=theirs[message], ours=ours[message], rules=[]
            )
        different = theirs.keys() ^ ours.keys()
        self._parted_messages |= different
        has_copies = any(message.real_topic != topic for message in both.rocketmq.messages)
        is_again = has_copies or any(ours.values()) or self._has_due(group, topic)
        rules = [IN_PLACE] if is_again else []
        for queue_id in both.rocketmq.visited if different else ():  # what one queue gave, another one did not have to
            for rule in [*both.rules, *rules]:
                self.part((topic, group, queue_id), rule)
        return rules

    def _has_due(self, group: str, topic: str) -> bool:
        """Whether a message of the group is visible again, and not revived yet."""
        topics = {topic, retry_topic_of(group, topic), retry_topic_of(group, topic, 2)}
        return any(
            record.visible_ms <= self.now_ms
            for record in self.rocketmq.store.everything()
            if record.message[0] == group and record.message[1] in topics
        )

    def shown_by_rocketmq(self, popped: Popped) -> list[list[Any]]:
        """[queue id, offset, count] of an orderly pop, the counts as RocketMQ's client shows them."""
        return [
            [m.queue_id, m.offset, shown_counts(popped.order_counts, m.queue_id, [m.offset])[m.offset]]
            for m in popped.messages
        ]

    # Ack and change.

    def ack(self, lane: Lane, offset: int, handle: RocketHandle) -> BothAnswers:
        """One ack; `lane` has the real topic."""
        is_lost = self.rocketmq.orders.entry(lane) is None
        acked = self.rocketmq.ack(lane, offset, _words(handle), self.now_ms)
        rocketmq: dict[str, int | None] = {"code": acked.code}
        place = self._place(lane, offset)
        if place is None:
            return BothAnswers(rocketmq, None, None, [])
        [outcome] = self.broker.ack(place[0], [place[1]], handle)
        rules = self._rules_of(place[0], handle, outcome, is_change=False)
        self._note_effect(place, is_same=acked.had_effect == outcome.applied)
        self._note_beyond(place[0])
        if self.is_orderly(lane) and is_lost and acked.had_effect and lane not in self._beyond:
            self.part(lane, NEVER_LOST)
        return BothAnswers(rocketmq, {"code": outcome.code}, outcome, rules)

    def change(self, change: RocketChange) -> BothAnswers:
        """One change."""
        [both] = self.changes([change])
        return both

    def changes(self, changes: Sequence[RocketChange]) -> list[BothAnswers]:
        """Changes of one queue: RocketMQ one by one, popstream in one record."""
        changed = [
            self.rocketmq.change(
                change.lane,
                change.offset,
                _words(change.handle),
                change.invisible_time_ms,
                self.now_ms,
                suspend=change.suspend,
            )
            for change in changes
        ]
        places = [self._place(change.lane, change.offset) for change in changes]
        ours = [
            Changing(place[1], change.handle, change.invisible_time_ms, change.suspend)
            for place, change in zip(places, changes, strict=True)
            if place is not None
        ]
        lane = next((place[0] for place in places if place is not None), None)
        outcomes = iter(self.broker.change(lane, ours)) if lane is not None else iter(())
        found = []
        for place, change, theirs in zip(places, changes, changed, strict=True):
            header = theirs.pop_time_ms, theirs.invisible_time_ms, theirs.revive_queue_id
            rocketmq = _header(theirs.code, header)
            if place is None:
                found.append(BothAnswers(rocketmq, None, None, []))
                continue
            outcome = next(outcomes)
            rules = self._rules_of(place[0], change.handle, outcome, is_change=True)
            ours_header = outcome.pop_time_ms, outcome.invisible_time_ms, outcome.revive_queue_id
            found.append(BothAnswers(rocketmq, _header(outcome.code, ours_header), outcome, rules))
            if theirs.is_lost:
                self.lost.add((place[0][1], place[0][0], place[0][2], place[1]))
                self.part(place[0], EQUAL_DEADLINE)
                self._parted_messages.add((place[0][1], place[0][0], place[0][2], place[1]))
            self._follow_change(place, change, outcome, is_accepted=not theirs.code, had_effect=theirs.had_effect)
        return found

    def _follow_change(
        self,
        place: tuple[Lane, int],
        change: RocketChange,
        outcome: KernelOutcome,
        *,
        is_accepted: bool,
        had_effect: bool,
    ) -> None:
        lane, offset = place
        if self.is_orderly(lane):
            next_visible_ms = self.now_ms + change.invisible_time_ms
            if outcome.applied:
                self.changed.setdefault(lane, {})[offset] = next_visible_ms
                self.refused.get(lane, {}).pop(offset, None)
            elif is_accepted and outcome.reason in (Reason.OUTSIDE_POP, Reason.INVALID_PARAMETER):
                rule = CHANGE_OUTSIDE_ITS_POP if outcome.reason is Reason.OUTSIDE_POP else RANGE_CHECKED
                self.refused.setdefault(lane, {})[offset] = rule
        if is_accepted and outcome.reason is Reason.INVALID_PARAMETER and change.invisible_time_ms < 0:
            # What RocketMQ made visible in the past is visible now: go on as if that had been asked for.
            [outcome] = self.broker.change(lane, [Changing(offset, change.handle, 0, change.suspend)])
            if outcome.reason is Reason.OUTSIDE_POP and self.is_orderly(lane):
                self.refused[lane][offset] = CHANGE_OUTSIDE_ITS_POP
        if change.suspend and outcome.applied and self.is_orderly(lane):
            self.part(lane, SUSPEND_IN_ORDER)
        # RocketMQ's change leaves a record, whether there was one before or not.
        self._note_effect(place, is_same=(had_effect and outcome.applied) if is_accepted else not outcome.applied)

    def _note_effect(self, place: tuple[Lane, int], *, is_same: bool) -> None:
        """Where one side has done something and the other has not, a concurrent message has parted."""
        lane, offset = place
        if not is_same and not self.is_orderly(lane):
            self.part(lane, FENCED_HANDLES)
            self._parted_messages.add((lane[1], lane[0], lane[2], offset))

    def _rules_of(self, lane: Lane, handle: RocketHandle, outcome: KernelOutcome, *, is_change: bool) -> list[str]:
        rule = rule_of(
            outcome.reason,
            is_orderly=self.is_orderly(lane),
            is_change=is_change,
            is_zero_header=handle.is_zero_header,
        )
        return [*([rule] if rule is not None else []), *self.rules(lane)]

    def _place(self, lane: Lane, offset: int) -> tuple[Lane, int] | None:
        """The lane and offset where a message was first sent; None for a copy that does not exist."""
        topic, group, queue_id = lane
        normal = self._normal_topic(group, topic)
        if normal == topic:
            return lane, offset
        original = self.rocketmq.original(topic, queue_id, offset)
        return None if original is None else ((normal, group, original.queue_id), original.offset)

    def _normal_topic(self, group: str, topic: str) -> str:
        for name in self.rocketmq.orders.topics:
            if topic in (retry_topic_of(group, name), retry_topic_of(group, name, 2)):
                return name
        return topic

    # Revive.

    def revive(self, count_max: int | None = None) -> tuple[int, list[Revived]]:
        """One pass of RocketMQ's loop; what it copies must be poppable again in popstream."""
        scanned, copies = self.rocketmq.revive(self.now_ms, count_max)
        # A change with a zero header leaves a record of an orderly message, whose copy no orderly pop reads.
        copies_of = {(copy.topic, copy.group, copy.original.queue_id) for copy in copies}
        for lane in sorted(lane for lane in copies_of if not self.is_orderly(lane)):
            offered = self._poppable(lane)
            for copy in copies:
                original = copy.original
                message = (copy.group, copy.topic, original.queue_id, original.offset)
                if lane == (copy.topic, copy.group, original.queue_id) and message not in self._parted_messages:
                    self._comparison.compare(
                        f"{self._where}, the message of copy {copy.retry_topic}#{copy.offset}",
                        rocketmq=original.reconsume_times + 1,
                        ours=offered.get(original.offset),
                        rules=[],
                    )
        for lane in self._lanes():
            if not self.is_orderly(lane) and any(lane[:2] == other[:2] for other in copies_of):
                self.part(lane, IN_PLACE)
        return scanned, copies

    def _poppable(self, lane: Lane) -> dict[int, int]:
        """The messages of a lane that can be popped now, with their attempts: popped from a copy."""
        tried = self.broker.fork()
        answer = tried.pop(lane, count=_MESSAGES_MAX, invisible_time_ms=1_000, order=False)
        self._comparison.agree(f"{self._where}, a pop", tried.pair.disagreement)
        return {} if answer is None else dict(offsets_of(answer))


def _words(handle: RocketHandle) -> tuple[int, int, int]:
    return handle.pop_time_ms, handle.invisible_time_ms, handle.revive_queue_id


def _header(code: int, header: tuple[int | None, int | None, int | None]) -> dict[str, int | None]:
    """The answer to a change; a refusal has no header, for which RocketMQ writes zeros."""
    pop_time_ms, invisible_time_ms, revive_queue_id = (None, None, None) if code else header
    return {
        "code": code,
        "pop_time": pop_time_ms,
        "invisible_time": invisible_time_ms,
        "revive_qid": revive_queue_id,
    }
