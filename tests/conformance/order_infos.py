"""RocketMQ's forms of popstream's batch of an orderly lane."""

from typing import Any

from broker_state.kernel.order_info import OrderInfo

__all__ = ["is_member", "order_counts", "stored_form"]


def is_member(info: OrderInfo, offset: int) -> bool:
    """Whether the latest pop returned the offset."""
    _, member = info.at(offset, offset + 1)
    return member is not None and member.is_member


def order_counts(info: OrderInfo, queue_id: int) -> dict[str, int]:
    """RocketMQ's order count header: the queue's minimum, and one entry for each counted offset."""
    each = {f"0@qo{queue_id}%{at}": count for at, count in _counts(info).items()}
    return {f"0@{queue_id}": info.head.least_count, **each}


def _counts(info: OrderInfo) -> dict[int, int]:
    """How often offsets were delivered before, those that were."""
    return {at: member.count for first, end, member in info.runs() if member.count for at in range(first, end)}


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
    counts = {str(at): count for at, count in _counts(info).items()}
    head = info.head
    return {
        "popTime": head.pop_time_ms,
        "i": head.invisible_time_ms or None,
        "o": [at - members[0] if number else at for number, at in enumerate(members)],
        "cm": acked,
        "l": head.last_consume_ms,
        "ot": visible or None,
        "oc": counts or None,
        "a": head.attempt_id,
    }
