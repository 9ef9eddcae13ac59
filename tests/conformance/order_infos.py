"""`OrderInfo` called as RocketMQ calls its manager: a table topic@group -> queue -> entry, a clock, a wake-up timer."""

from collections.abc import Callable
from typing import Any

from broker_state.kernel.order_info import OrderInfo
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from tests.conformance.rules import NO_64_LIMIT, TRUE_WAKE_UP
from tests.conformance.verdict import Comparison, plain

__all__ = ["OrderInfoTable", "order_counts", "stored_form"]

_BITS = 64

_Told = tuple[Any, Callable[[Any], Any] | None, list[str]]
"""What ours is; what the rules make of RocketMQ's value (None: leave it); their names."""

_NOTHING: _Told = None, None, []


class _Entry:
    """One OrderInfo, and what RocketMQ keeps beside: acks as a 64-bit integer has them, values as they were given."""

    def __init__(self) -> None:
        self.info = OrderInfo(Overlay(MemoryKv()), b"lane")
        self.wrapped = 0
        self.invisible_time_ms: int | None = None
        self.visible_of_others: dict[str, int] = {}
        """Next visible times of offsets that are no members."""

    def members(self) -> list[int]:
        return [at for first, end, m in self.info.runs() if m.is_member for at in range(first, end)]

    def is_over_the_limit(self) -> bool:
        return len(self.members()) > _BITS

    def unacked_visible_ms(self) -> list[int]:
        """Next visible times of the members that RocketMQ takes for unacked."""
        visible = [
            self.info.next_visible_ms(member)
            for first, end, member in self.info.runs()
            if member.is_member
            for _ in range(first, end)
        ]
        return [ms for number, ms in enumerate(visible) if not self.wrapped >> number % _BITS & 1]


def _instead_of(rocketmq: object, ours: object) -> Callable[[Any], Any]:
    """The rule has ours where RocketMQ has that value; with any other the difference that it predicts did not occur."""
    return lambda expected: ours if plain(expected) == plain(rocketmq) else f"{rocketmq!r} of RocketMQ"


class OrderInfoTable:
    """Every `oi_` operation of the vectors; `run` compares its result with RocketMQ's."""

    def __init__(self, now_ms: int, comparison: Comparison) -> None:
        self.now_ms = now_ms
        self._comparison = comparison
        self._table: dict[tuple[str, str], dict[int, _Entry]] = {}
        self._timers: dict[tuple[str, str, int], tuple[int, int]] = {}
        """When the timer of a lane was last armed: by ours, by RocketMQ's rule."""
        self._told: dict[tuple[str, str, int], int] = {}
        self._told_early: dict[tuple[str, str, int], int] = {}
        self._topics = {"T": 1}
        self._groups = {"G"}

    def run(self, where: str, step: dict[str, Any]) -> None:
        """One step; nothing is compared when it expects nothing."""
        name = step["op"].removeprefix("oi_")
        ours, mapped, rules = getattr(self, f"_do_{name}")(step)
        if "expect" in step:
            expected = step["expect"]
            self._comparison.check(where, expected, expected if mapped is None else mapped(expected), ours, rules)

    def knows(self, op: str) -> bool:
        """Whether it is an operation on order infos, or on what they depend on."""
        return hasattr(self, f"_do_{op.removeprefix('oi_')}")

    def _entry(self, step: dict[str, Any]) -> _Entry | None:
        return self._table.get((step["topic"], step["group"]), {}).get(step["queue_id"])

    def _do_clock(self, step: dict[str, Any]) -> _Told:
        self.now_ms = step["now"]
        return _NOTHING

    def _do_advance(self, step: dict[str, Any]) -> _Told:
        self.now_ms += step["ms"]
        return _NOTHING

    def _do_add_topic(self, step: dict[str, Any]) -> _Told:
        self._topics[step["topic"]] = step.get("read_queue_nums", 1)
        return _NOTHING

    def _do_add_group(self, step: dict[str, Any]) -> _Told:
        self._groups.add(step["group"])
        return _NOTHING

    def _do_update(self, step: dict[str, Any]) -> _Told:
        queues = self._table.setdefault((step["topic"], step["group"]), {})
        entry = queues.setdefault(step["queue_id"], _Entry())
        entry.info.update(
            epoch=step["pop_time"],
            pop_time_ms=step["pop_time"],
            invisible_time_ms=step["invisible_time"] or 0,
            members=[(offset, offset + 1) for offset in step["offsets"]],
            now_ms=self.now_ms,
            attempt_id=step["attempt_id"],
        )
        entry.wrapped = 0
        entry.invisible_time_ms = step["invisible_time"]
        entry.visible_of_others = {}
        self._arm(step, entry)
        return {"order_count_info": order_counts(entry.info, step["queue_id"])}, None, []

    def _do_check_block(self, step: dict[str, Any]) -> _Told:
        entry = self._entry(step)
        self._table.setdefault((step["topic"], step["group"]), {})
        if entry is None:
            return False, None, []
        ours = entry.info.check_block(step["attempt_id"], step["invisible_time"], self.now_ms)
        wrapped = any(ms > self.now_ms for ms in entry.unacked_visible_ms())
        if not ours or wrapped or not entry.is_over_the_limit():
            return ours, None, []
        return ours, _instead_of(wrapped, ours), [NO_64_LIMIT]

    def _do_commit_and_next(self, step: dict[str, Any]) -> _Told:
        entry, offset = self._entry(step), step["offset"]
        if entry is None:
            return offset + 1, None, []  # RocketMQ's answer when it has no entry; the kernel has no such case
        ours = entry.info.commit_and_next(offset, step["pop_time"])
        if ours < 0:
            return ours, None, []
        members = entry.members()
        entry.wrapped |= 1 << members.index(offset) % _BITS
        self._arm(step, entry)
        wrapped = next((at for i, at in enumerate(members) if not entry.wrapped >> i % _BITS & 1), members[-1] + 1)
        if wrapped == ours:
            return ours, None, []
        return ours, _instead_of(wrapped, ours), [NO_64_LIMIT]

    def _do_update_next_visible_time(self, step: dict[str, Any]) -> _Told:
        entry = self._entry(step)
        if entry is not None and step["pop_time"] == entry.info.epoch:
            entry.info.update_next_visible_time(step["offset"], step["pop_time"], step["next_visible_time"])
            if step["offset"] not in entry.members():
                entry.visible_of_others[str(step["offset"])] = step["next_visible_time"]
            self._arm(step, entry)
        return _NOTHING

    def _do_clear_block(self, step: dict[str, Any]) -> _Told:
        self._table.get((step["topic"], step["group"]), {}).pop(step["queue_id"], None)
        return _NOTHING

    def _do_lock_free_timestamp(self, step: dict[str, Any]) -> _Told:
        entry = self._entry(step)
        if entry is None:
            return _NOTHING
        ours, first = entry.info.lock_free_ms(self.now_ms), self._first_moment(entry)
        return self._moment(ours, first, NO_64_LIMIT if entry.is_over_the_limit() else TRUE_WAKE_UP)

    def _do_timer(self, step: dict[str, Any]) -> _Told:
        armed = self._timers.get((step["topic"], step["group"], step["queue_id"]))
        return _NOTHING if armed is None else self._moment(*armed, TRUE_WAKE_UP)

    def _do_notified(self, _: dict[str, Any]) -> _Told:
        """The timers that have fired since the last call: ours at the true moment, RocketMQ's perhaps too early."""
        ours = self._fired({lane: armed[0] for lane, armed in self._timers.items()}, self._told)
        early = self._fired({lane: armed[1] for lane, armed in self._timers.items()}, self._told_early)
        if ours == early:
            return ours, None, []
        return ours, _instead_of(early, ours), [TRUE_WAKE_UP]

    def _fired(self, armed: dict[tuple[str, str, int], int], told: dict[tuple[str, str, int], int]) -> list[str]:
        new = [lane for lane, ms in sorted(armed.items()) if ms <= self.now_ms and told.get(lane) != ms]
        told.update((lane, armed[lane]) for lane in new)
        return ["@".join(map(str, lane)) for lane in new]

    def _moment(self, ours: int | None, first: int | None, rule: str) -> _Told:
        if ours == first:
            return ours, None, []
        return ours, _instead_of(first, ours), [rule]

    def _first_moment(self, entry: _Entry) -> int | None:
        """RocketMQ's choice: the end of the first member that is still invisible, others may block on."""
        ours = entry.info.lock_free_ms(self.now_ms)
        if ours is None:
            return None
        return next((ms for ms in entry.unacked_visible_ms() if ms > self.now_ms), self.now_ms)

    def _arm(self, step: dict[str, Any], entry: _Entry) -> None:
        ours, first = entry.info.lock_free_ms(self.now_ms), self._first_moment(entry)
        if ours is not None and first is not None:
            self._timers[step["topic"], step["group"], step["queue_id"]] = ours, first

    def _do_state(self, step: dict[str, Any]) -> _Told:
        entry = self._entry(step)
        if entry is None:
            return _NOTHING
        state = stored_form(entry.info)
        state["i"] = entry.info.invisible_time_ms or entry.invisible_time_ms
        state["ot"] = {**(state["ot"] or {}), **entry.visible_of_others} or None
        state["cm"] = _signed(state["cm"])
        wanted = step.get("expect")
        if not isinstance(wanted, dict):
            return state, None, []
        ours = {key: state.get(key) for key in wanted}
        wrapped = _signed(entry.wrapped)
        if entry.is_over_the_limit() and "cm" in wanted and ours["cm"] != wrapped:
            return ours, _instead_of({**ours, "cm": wrapped}, ours), [NO_64_LIMIT]
        return ours, None, []

    def _do_legacy_nulls(self, step: dict[str, Any]) -> _Told:
        """The entry of an older RocketMQ: members and acks, but no invisible time, changed times and counts."""
        entry = self._entry(step)
        assert entry is not None, "the vector has an entry"
        old, legacy = entry.info, _Entry()
        legacy.info.update(
            epoch=old.epoch,
            pop_time_ms=old.pop_time_ms,
            invisible_time_ms=0,
            members=[(first, end) for first, end, member in old.runs() if member.is_member],
            now_ms=old.last_consume_ms,
            attempt_id=old.attempt_id,
        )
        for first, end, member in old.runs():
            if member.acked:
                legacy.info.ack(first, end)
        legacy.wrapped = entry.wrapped
        legacy.invisible_time_ms = None
        self._table[step["topic"], step["group"]][step["queue_id"]] = legacy
        return _NOTHING

    def _do_auto_clean(self, _: dict[str, Any]) -> _Told:
        """A topic@group that a pass empties goes with the next pass (ConsumerOrderInfoManager.autoClean)."""
        for (topic, group), queues in list(self._table.items()):
            if "@" in topic or "@" in group:
                continue  # RocketMQ cannot take the key apart, and leaves it
            if topic not in self._topics or group not in self._groups or not queues:
                del self._table[topic, group]
                continue
            for queue_id, entry in list(queues.items()):
                if queue_id >= self._topics[topic] or entry.info.auto_clean(self.now_ms):
                    del queues[queue_id]
        return {"table_size": len(self._table)}, None, []


def _signed(bits: int) -> int:
    """As RocketMQ's long has it; more than 64 bits stay what they are.

    >>> _signed(1 << 63), _signed(5)
    (-9223372036854775808, 5)
    """
    return bits - (1 << _BITS) if bits >> (_BITS - 1) == 1 else bits


def order_counts(info: OrderInfo, queue_id: int) -> dict[str, int]:
    """RocketMQ's order count header: the queue's minimum, and one entry for each counted offset."""
    counts = info.consumed_counts()
    each = {f"0@qo{queue_id}%{at}": count for first, end, count in counts.runs for at in range(first, end)}
    return {f"0@{queue_id}": counts.least, **each}


def stored_form(info: OrderInfo) -> dict[str, Any]:
    """The entry under RocketMQ's JSON names; 0 stands for an invisible time that is not known."""
    members: list[int] = []
    acked = 0
    visible: dict[str, int] = {}
    for first, end, member in info.runs():
        for at in range(first, end):
            if not member.is_member:
                continue
            acked |= member.acked << len(members)
            members.append(at)
            if member.next_visible_ms >= 0:
                visible[str(at)] = member.next_visible_ms
    counts = {str(at): count for first, end, count in info.consumed_counts().runs for at in range(first, end)}
    return {
        "popTime": info.pop_time_ms,
        "i": info.invisible_time_ms or None,
        "o": [at - members[0] if number else at for number, at in enumerate(members)],
        "cm": acked,
        "l": info.last_consume_ms,
        "ot": visible or None,
        "oc": counts or None,
        "a": info.attempt_id,
    }
