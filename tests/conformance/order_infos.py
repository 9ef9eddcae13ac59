"""RocketMQ's forms of popstream's batch of an orderly lane."""

from typing import Any

from broker_state.kernel.order_info import OrderInfo

__all__ = ["order_counts", "stored_form"]


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
