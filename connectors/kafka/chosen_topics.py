"""Which topics a job reads messages from: those that match its patterns, but none that popstream jobs have made."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.own_topics import Topics

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["chosen_topics"]

_OPS = ".ops"


def chosen_topics(names: Iterable[str], globs: Sequence[str], own_prefix: str | None = None) -> list[str]:
    """Return the sorted names that match one of `globs`, without Kafka's internal topics and those of popstream jobs.

    Topics of the job with `own_prefix` are never chosen. Other jobs are recognised by their complete set of topics,
    whatever their prefix; a job of an older version has not all of them.

    >>> made = [*Topics.of("a.b").names, *ClusterTopics.of("a.b").names]
    >>> chosen_topics([*made, "__consumer_offsets", "orders", "orders.ops", "x1", "x2"], ["a*", "orders*", "x?"])
    ['orders', 'orders.ops', 'x1', 'x2']
    """
    found = set(names)
    prefixes = {name.removesuffix(_OPS) for name in found if name.endswith(_OPS)}
    of_jobs = {prefix for prefix in prefixes if found.issuperset(_recognised_by(Topics.of_any(prefix)))}
    if own_prefix is not None:
        of_jobs.add(own_prefix)
    made = {name for prefix in of_jobs for name in (*Topics.of_any(prefix).names, *ClusterTopics.of(prefix).names)}
    return sorted(
        name
        for name in found - made
        if not name.startswith("__") and any(fnmatchcase(name, pattern) for pattern in globs)
    )


def _recognised_by(topics: Topics) -> set[str]:
    return {*topics.names} - {topics.owner, topics.dead_letters_handled}
