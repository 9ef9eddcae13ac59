"""RocketMQ's calls of its ConsumerOrderInfoManager, as records that popstream decides.

An `update` is a pop by tags that only the wanted offsets have, of a lane that was freed before; `commitAndNext` is an
ack, `updateNextVisibleTime` a change, `clearBlock` a reset where the lane stands. Whether a lane blocks, and when a
waiting pop is served, is tried out on a copy: `blocks` pops from it, `wakes_at` lets a parked pop wait in it.
"""

from collections.abc import Iterable
from typing import Any

from popstream.wire.command import WrittenRange
from popstream.wire.limits import INVISIBLE_TIME_MS_MAX, POP_TAGS_MAX
from popstream.wire.reason import Reason
from tests.conformance.conformance_verdict import Comparison, NotApplicableError
from tests.conformance.kernel.epilogue import follow_to_the_end
from tests.conformance.kernel.kernel_broker import Changing, KernelBroker, Lane, RocketHandle, offsets_of
from tests.conformance.rocketmq.order_info_manager import RocketOrders, counts_others, shown_counts
from tests.conformance.rules import (
    CHANGE_OUTSIDE_ITS_POP,
    NEVER_LOST,
    NO_64_LIMIT,
    OWN_COUNT,
    RANGE_CHECKED,
    TRUE_WAKE_UP,
)

__all__ = ["OrderInfoSteps"]

_OFFSETS_MAX = 100_000
_ACKED_BEFORE = (Reason.OK, Reason.ALREADY_ACKED)


class OrderInfoSteps:
    """Every `oi_` operation of the vectors, given to RocketMQ's shadow and to popstream."""

    def __init__(self, now_ms: int, steps: list[dict[str, Any]], comparison: Comparison) -> None:
        self._comparison = comparison
        self._rocketmq = RocketOrders()
        self._broker = KernelBroker(now_ms)
        self._steps = steps
        self._bounds = _bounds(steps)
        self._parted: dict[Lane, list[str]] = {}
        """Rules by which the two entries of a lane have parted."""
        self._changed: dict[Lane, dict[int, int]] = {}
        """Next visible times that popstream has taken over, of the lane's batch."""
        self._armed: dict[Lane, int] = {}
        """When a waiting pop of a lane is served, as of the last change of its batch."""
        self._fired: dict[Lane, int] = {}
        self._fired_by_rocketmq: dict[Lane, int] = {}

    @property
    def now_ms(self) -> int:
        """The clock of both."""
        return self._broker.now_ms

    def run_all(self) -> None:
        """Every step, and what it expects."""
        for number, step in enumerate(self._steps):
            where = f"step {number} ({step['op']})"
            getattr(self, f"_do_{step['op'].removeprefix('oi_')}")(where, step)
            self._comparison.agree(where, self._broker.pair.disagreement)
        follow_to_the_end(self._broker, self._comparison)

    def _compare(self, where: str, step: dict[str, Any], rocketmq: object, ours: object, rules: Iterable[str]) -> None:
        recorded = {"recorded": step["expect"]} if "expect" in step else {}
        self._comparison.compare(where, rocketmq=rocketmq, ours=ours, rules=rules, **recorded)

    def _do_clock(self, _: str, step: dict[str, Any]) -> None:
        self._broker.now_ms = step["now"]

    def _do_advance(self, _: str, step: dict[str, Any]) -> None:
        self._broker.now_ms += step["ms"]

    def _do_add_topic(self, _: str, step: dict[str, Any]) -> None:
        self._rocketmq.topics[step["topic"]] = step.get("read_queue_nums", 1)

    def _do_add_group(self, _: str, step: dict[str, Any]) -> None:
        self._rocketmq.groups.add(step["group"])

    def _do_update(self, where: str, step: dict[str, Any]) -> None:
        lane = _lane(step)
        if not step["offsets"]:
            message = "a pop without messages, which makes no batch"
            raise NotApplicableError(message)
        entry = self._rocketmq.update(
            lane,
            now_ms=self.now_ms,
            pop_time_ms=step["pop_time"],
            invisible_time_ms=step["invisible_time"],
            offsets=step["offsets"],
            attempt_id=step["attempt_id"],
        )
        header = entry.header(lane[2])
        if "expect" in step:
            recorded = {"order_count_info": header}
            self._comparison.compare(where, recorded=step["expect"], rocketmq=recorded, ours=recorded, rules=[])
        if (step["invisible_time"] or 0) <= 0:
            self._part(lane, RANGE_CHECKED)
        ours = self._pop(where, lane, step)
        shown = shown_counts(header, lane[2], step["offsets"])
        rules = self._rules(lane)
        if counts_others(header, lane[2], step["offsets"]):
            rules.append(OWN_COUNT)
        self._comparison.compare(f"{where}, counts", rocketmq=shown, ours=ours, rules=rules)
        self._arm(where, lane)

    def _pop(self, where: str, lane: Lane, step: dict[str, Any]) -> dict[int, int]:
        """A pop that gets the offsets of an update, visible when RocketMQ has them visible: their counts."""
        self._write(lane)
        offsets, broker = step["offsets"], self._broker
        state = broker.lane(lane)
        if state is not None and offsets[0] < state["commit"]:
            message = "no pop of popstream gets messages before the commit offset"
            raise NotApplicableError(message)
        batch = broker.batch(lane)
        if batch is None or batch["attempt_id"] is None or batch["attempt_id"] != step["attempt_id"]:
            self._free(where, lane)
        is_timed = (step["invisible_time"] or 0) > 0
        left_ms = step["pop_time"] + (step["invisible_time"] or 0) - broker.now_ms
        answer = broker.pop(
            lane,
            count=len(offsets),
            invisible_time_ms=min(max(left_ms, 1), INVISIBLE_TIME_MS_MAX) if is_timed else 0,
            order=True,
            attempt_id=step["attempt_id"],
            tags=[offset + 1 for offset in offsets] if len(offsets) <= POP_TAGS_MAX else None,
            known_as_ms=step["pop_time"],
        )
        if answer is None or answer.reason is not Reason.OK:
            return {}
        self._changed[lane] = {}
        if left_ms <= 0:
            self._free(where, lane)
        return {offset: attempt - 1 for offset, attempt in offsets_of(answer)}

    def _free(self, where: str, lane: Lane) -> None:
        """Release what is invisible of the lane's batch, so that a pop is served."""
        batch = self._broker.batch(lane)
        if batch is None or not self._broker.is_blocked(lane):
            return
        pop_time_ms = next(at_ms for at_ms in self._broker.pop_times(lane))
        handle = RocketHandle(0, pop_time_ms, 0, 999)
        kept = [
            Changing(offset, handle, 0)
            for offset, member in batch["members"].items()
            if not member["acked"] and member["next_visible"] > self.now_ms
        ]
        outcomes = self._broker.change(lane, kept)
        if not all(outcome.applied for outcome in outcomes):
            self._comparison.fail(f"at {where}: popstream does not release what it has handed out: {outcomes}")

    def _do_check_block(self, where: str, step: dict[str, Any]) -> None:
        lane = _lane(step)
        entry = self._rocketmq.entry(lane)
        rocketmq = self._rocketmq.blocks(lane, step["attempt_id"], step["invisible_time"], self.now_ms)
        ours = self._blocks(where, lane, step["attempt_id"])
        rules = self._rules(lane)
        if entry is not None and entry.is_over_64:
            rules.append(NO_64_LIMIT)
        self._compare(where, step, rocketmq, ours, rules)

    def _do_commit_and_next(self, where: str, step: dict[str, Any]) -> None:
        lane, offset = _lane(step), step["offset"]
        entry = self._rocketmq.entry(lane)
        rocketmq = self._rocketmq.ack(lane, offset, step["pop_time"], self.now_ms)
        ours = self._ack(lane, offset, RocketHandle(0, step["pop_time"], 0, 999))
        rules = self._rules(lane)
        if entry is None:
            rules.append(NEVER_LOST)
        elif entry.is_over_64:
            rules.append(NO_64_LIMIT)
        self._compare(where, step, rocketmq, ours, rules)
        self._arm(where, lane)

    def _ack(self, lane: Lane, offset: int, handle: RocketHandle) -> int | str:
        """An ack under RocketMQ's numbers: the commit offset, -2 for a stale handle, -1 for no member."""
        self._write(lane)
        is_current = self._broker.is_current(lane, handle)
        members = (self._broker.batch(lane) or {"members": {}})["members"]
        [outcome] = self._broker.ack(lane, [offset], handle)
        if not is_current and not outcome.applied:
            return -2
        if offset not in members and not outcome.applied:
            return -1
        if outcome.reason in _ACKED_BEFORE and outcome.commit_offset is not None:
            return outcome.commit_offset
        return str(outcome.reason)

    def _do_update_next_visible_time(self, where: str, step: dict[str, Any]) -> None:
        lane, offset, next_visible_ms = _lane(step), step["offset"], step["next_visible_time"]
        self._rocketmq.change(lane, offset, step["pop_time"], next_visible_ms, self.now_ms)
        self._write(lane)
        handle = RocketHandle(0, step["pop_time"], 0, 999)
        invisible_time_ms = next_visible_ms - self.now_ms
        if invisible_time_ms < 0:
            [refused] = self._broker.change(lane, [Changing(offset, handle, invisible_time_ms)])
            self._comparison.compare(
                where, rocketmq=True, ours=refused.reason is not Reason.INVALID_PARAMETER, rules=[RANGE_CHECKED]
            )
        [outcome] = self._broker.change(lane, [Changing(offset, handle, max(invisible_time_ms, 0))])
        if outcome.applied:
            self._changed.setdefault(lane, {})[offset] = next_visible_ms
        elif outcome.reason is Reason.OUTSIDE_POP:
            self._part(lane, CHANGE_OUTSIDE_ITS_POP)
        self._arm(where, lane)

    def _do_clear_block(self, _: str, step: dict[str, Any]) -> None:
        lane = _lane(step)
        self._rocketmq.clear(lane)
        state = self._broker.lane(lane)
        if state is not None:
            self._broker.reset_offset(lane, state["commit"])
        self._changed.pop(lane, None)

    def _do_legacy_nulls(self, _: str, step: dict[str, Any]) -> None:
        """An entry of an older RocketMQ; popstream has none without an invisible time, for it refuses such a pop."""
        lane = _lane(step)
        entry = self._rocketmq.entry(lane)
        if entry is not None:
            entry.invisible_time_ms, entry.visible_ms, entry.counts = None, {}, {}
            self._part(lane, RANGE_CHECKED)

    def _do_lock_free_timestamp(self, where: str, step: dict[str, Any]) -> None:
        lane = _lane(step)
        entry = self._rocketmq.entry(lane)
        rocketmq = entry.lock_free_ms(self.now_ms) if entry is not None else None
        self._compare_moment(where, step, rocketmq, self._wake_ms(lane))

    def _do_timer(self, where: str, step: dict[str, Any]) -> None:
        lane = _lane(step)
        self._compare_moment(where, step, self._rocketmq.armed.get(lane), self._armed.get(lane))

    def _compare_moment(self, where: str, step: dict[str, Any], rocketmq: int | None, ours: int | None) -> None:
        lane = _lane(step)
        entry, rules = self._rocketmq.entry(lane), self._rules(lane)
        if entry is not None and entry.is_over_64:
            rules.append(NO_64_LIMIT)
        elif rocketmq is not None and ours is not None and ours > rocketmq:
            rules.append(TRUE_WAKE_UP)
        self._compare(where, step, rocketmq, ours, rules)

    def _do_notified(self, where: str, step: dict[str, Any]) -> None:
        """The timers that have fired since the last call: ours at the true moment, RocketMQ's perhaps too early."""
        ours = _fired(self._armed, self._fired, self.now_ms)
        rocketmq = _fired(self._rocketmq.armed, self._fired_by_rocketmq, self.now_ms)
        is_too_early = all(self._armed.get(lane, self.now_ms + 1) > self.now_ms for lane in {*rocketmq} - {*ours})
        was_too_early = all(lane in self._fired_by_rocketmq for lane in {*ours} - {*rocketmq})
        rules = [TRUE_WAKE_UP] if is_too_early and was_too_early else []
        self._compare(where, step, _names(rocketmq), _names(ours), rules)

    def _do_state(self, where: str, step: dict[str, Any]) -> None:
        lane = _lane(step)
        entry, wanted = self._rocketmq.entry(lane), step.get("expect")
        stored = entry.stored() if entry is not None else None
        ours = self._stored(lane)
        rules = self._rules(lane)
        if entry is not None and entry.is_over_64:
            rules.append(NO_64_LIMIT)
        if isinstance(wanted, dict):
            stored = {key: (stored or {}).get(key) for key in wanted}
            ours = {key: (ours or {}).get(key) for key in wanted}
        self._compare(where, step, stored, ours, rules)

    def _stored(self, lane: Lane) -> dict[str, Any] | None:
        """popstream's batch under the names of RocketMQ's file."""
        batch = self._broker.batch(lane)
        if batch is None:
            return None
        members = batch["members"]
        offsets, pop_time_ms = list(members), next(iter(self._broker.pop_times(lane)))
        acked = sum(member["acked"] << index for index, member in enumerate(members.values()))
        return {
            "popTime": pop_time_ms,
            "i": batch["pop_time"] + batch["invisible"] - pop_time_ms,
            "o": [offset - offsets[0] if index else offset for index, offset in enumerate(offsets)],
            "cm": acked - (1 << 64) if acked >> 63 == 1 else acked,
            "l": batch["pop_time"],
            "ot": {str(offset): ms for offset, ms in self._changed.get(lane, {}).items()} or None,
            "oc": {str(offset): count for offset, count in batch["counts"].items()} or None,
            "a": batch["attempt_id"],
        }

    def _do_auto_clean(self, where: str, step: dict[str, Any]) -> None:
        """RocketMQ drops entries; popstream keeps them."""
        before = {(*names, queue_id) for names, queues in self._rocketmq.entries.items() for queue_id in queues}
        rocketmq = {"table_size": self._rocketmq.clean(self.now_ms)}
        for lane in before:
            if self._rocketmq.entry(lane) is None:
                self._part(lane, NEVER_LOST)
        kept = {lane[:2] for lane in self._changed if self._broker.batch(lane) is not None}
        has_lost = any(NEVER_LOST in rules for rules in self._parted.values())
        self._compare(where, step, rocketmq, {"table_size": len(kept)}, [NEVER_LOST] if has_lost else [])

    def _rules(self, lane: Lane) -> list[str]:
        return list(self._parted.get(lane, []))

    def _part(self, lane: Lane, rule: str) -> None:
        self._parted.setdefault(lane, []).append(rule)

    def _write(self, lane: Lane) -> None:
        """The lane's queue exists, with all messages that the vector names, each with a tag of its own, and more."""
        topic, _, queue_id = lane
        if self._broker.is_declared(topic, queue_id):
            return
        first, last = self._bounds[topic, queue_id]
        if last - first > _OFFSETS_MAX:
            message = "offsets that lie too far apart"
            raise NotApplicableError(message)
        self._broker.declare(topic, queue_id, first)
        named = [WrittenRange(offset, offset, offset + 1) for offset in range(first, last + 1)]
        for at in range(0, len(named), 5_000):
            self._broker.write(topic, queue_id, named[at : at + 5_000])
        self._broker.write(topic, queue_id, [WrittenRange(last + 1, last + 1)])

    def _blocks(self, where: str, lane: Lane, attempt_id: str | None) -> bool:
        """Whether a pop gets nothing now, although there are messages."""
        self._write(lane)
        tried = self._broker.fork()
        answer = tried.pop(lane, count=1, invisible_time_ms=1_000, order=True, attempt_id=attempt_id)
        self._comparison.agree(f"{where}, a pop", tried.pair.disagreement)
        return answer is None or answer.reason is Reason.NO_MESSAGE

    def _wake_ms(self, lane: Lane) -> int | None:
        """When a waiting pop is served: as soon as no unacked member is invisible."""
        return None if self._broker.batch(lane) is None else max(self._broker.free_ms(lane), self.now_ms)

    def _arm(self, where: str, lane: Lane) -> None:
        wake_ms = self._wake_ms(lane)
        if wake_ms is None:
            return
        self._armed[lane] = wake_ms
        if wake_ms > self.now_ms:
            self._try_waiting(where, lane, wake_ms)

    def _try_waiting(self, where: str, lane: Lane, wake_ms: int) -> None:
        """A pop that waits in a copy is served at `wake_ms`, before one that comes then, and not a moment earlier."""
        tried = self._broker.fork()
        poll_time_ms = min(wake_ms - self.now_ms + 1, INVISIBLE_TIME_MS_MAX)
        parked = tried.pop(lane, count=1, invisible_time_ms=1_000, order=True, poll_time_ms=poll_time_ms)
        before = len(tried.pair.answers)
        tried.now_ms = wake_ms - 1
        tried.tick(lane[0], lane[2])
        early = len(tried.pair.answers) - before - 1  # the tick's own
        tried.now_ms = wake_ms
        late = tried.pop(lane, count=1, invisible_time_ms=1_000, order=True)
        self._comparison.agree(f"{where}, a pop that waits", tried.pair.disagreement)
        if parked is not None or early or late is None or late.reason is not Reason.NO_MESSAGE:
            self._comparison.fail(f"at {where}: a pop that waits is not served at {wake_ms}, or not first")


def _lane(step: dict[str, Any]) -> Lane:
    return step["topic"], step["group"], step["queue_id"]


def _bounds(steps: list[dict[str, Any]]) -> dict[tuple[str, int], tuple[int, int]]:
    """The least and the greatest offset that the steps name, of each queue."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for step in steps:
        named = [*step.get("offsets", []), *([step["offset"]] if "offset" in step else [])]
        if "queue_id" in step:
            name = (step["topic"], step["queue_id"])
            first, last = found.get(name, (min(named, default=0), max(named, default=0)))
            found[name] = min([first, *named]), max([last, *named])
    return found


def _fired(armed: dict[Lane, int], fired: dict[Lane, int], now_ms: int) -> list[Lane]:
    """Lanes whose timer is due and was not reported for that moment."""
    due = [lane for lane, at_ms in sorted(armed.items()) if at_ms <= now_ms and fired.get(lane) != at_ms]
    fired.update((lane, armed[lane]) for lane in due)
    return due


def _names(lanes: list[Lane]) -> list[str]:
    return ["@".join(map(str, lane)) for lane in lanes]
