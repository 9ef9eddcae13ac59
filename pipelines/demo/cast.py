"""Who takes part: which processes there are, what each is told, and in which order those of a group begin."""

from pathlib import Path

from pipelines.demo.messages import Source
from pipelines.demo.orders import Orders, Role

__all__ = ["ORDERLY_GROUP", "STAGES", "group_names", "limited_groups", "orders_of"]

STAGES: tuple[Role, ...] = ("intruder", "doomed", "changer", "steady", "orderly")
"""In one group the next begin when those before have what they need: there must be something to hold and to lose."""

ORDERLY_GROUP = "accounts"
"""Gets every message too, in order."""

_NAMES = ("billing", "shipping", "search")
_ACK_COUNT = 20


def group_names(count: int) -> list[str]:
    """Names of the consumer groups.

    >>> group_names(4)
    ['billing', 'shipping', 'search', 'group-4']
    """
    return [*_NAMES[:count], *(f"group-{number}" for number in range(len(_NAMES) + 1, count + 1))]


def limited_groups(groups: list[str]) -> frozenset[str]:
    """Groups with an attempt limit: in the others poison can be processed."""
    return frozenset(groups[-1:])


def orders_of(
    *,
    groups: list[str],
    queues: int,
    partitions: int,
    source: Source,
    bootstrap_servers: str,
    prefix: str,
    topic: str,
    journals: Path,
    rejected_count: int,
    refused_count: int,
) -> list[Orders]:
    """The orders of every process."""
    limited = limited_groups(groups)

    def orders(name: str, role: Role, group: str, ack_count: int = 0) -> Orders:
        return Orders(
            name=name,
            role=role,
            bootstrap_servers=bootstrap_servers,
            prefix=prefix,
            topic=topic,
            queues=queues,
            partitions=partitions,
            source=source,
            journal=str(journals / f"{name}.jsonl"),
            group=group,
            ack_count=ack_count,
            releases_poison=group in limited,
            rejected_count=rejected_count,
            refused_count=refused_count,
        )

    cast = [orders("sender", "sender", "")]
    for number, group in enumerate(groups):
        # The first group acks all of a pop at once; in the others each few messages are an operation of their own.
        is_first = number == 0 and len(groups) > 1
        cast.append(orders(f"{group}-steady-1", "steady", group, 0 if is_first else _ACK_COUNT))
        if is_first:
            cast.append(orders(f"{group}-steady-2", "steady", group))
    cast += (
        orders(f"{groups[0]}-doomed", "doomed", groups[0]),
        orders(f"{groups[1 % len(groups)]}-intruder", "intruder", groups[1 % len(groups)]),
        orders(f"{groups[2 % len(groups)]}-changer", "changer", groups[2 % len(groups)]),
    )
    cast += (orders(f"{ORDERLY_GROUP}-{number}", "orderly", ORDERLY_GROUP) for number in (1, 2))
    return cast
