"""Finds the queues of a subscription's topics, and finds those that are added later."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


__all__ = ["QueueDiscovery"]

LOG = logging.getLogger(__name__)

REFRESH_S = 30.0
RETRY_PAUSE_S = 2.0


class QueueDiscovery:
    """Asks for the queues of each topic now and then. For use by one thread.

    Args:
        topics: Their names.
        queues_of: Returns the queue ids of a topic.
    """

    def __init__(self, topics: Iterable[str], queues_of: Callable[[str], Sequence[int]]) -> None:
        self._queues_of = queues_of
        self._refresh_at_s = dict.fromkeys(topics, 0.0)
        self._first_queues: dict[str, frozenset[int]] = {}
        self._failing: set[str] = set()
        """Topics whose failure has been logged."""

    def refresh(self, now_s: float) -> list[QueueName]:
        """Return all queues of the topics that are due; a topic that Kafka cannot describe now is retried later.

        Raises:
            Invalid: A topic that was not found before does not exist.
        """
        found: list[QueueName] = []
        for topic, refresh_at_s in self._refresh_at_s.items():
            if now_s < refresh_at_s:
                continue
            try:
                queue_ids = self._queues_of(topic)
            except (Invalid, Unavailable) as error:
                # A broker that has just started may not know a topic that exists.
                if isinstance(error, Invalid) and topic not in self._first_queues:
                    raise
                if topic not in self._failing:
                    LOG.warning("cannot list the queues of %s, retrying: %s", topic, error)
                self._failing.add(topic)
                self._refresh_at_s[topic] = now_s + RETRY_PAUSE_S
            else:
                self._failing.discard(topic)
                self._first_queues.setdefault(topic, frozenset(queue_ids))
                self._refresh_at_s[topic] = now_s + REFRESH_S
                found += [(topic, queue_id) for queue_id in queue_ids]
        return found

    def is_added(self, queue: QueueName) -> bool:
        """Tell whether a queue was added to its topic after the topic was first found."""
        topic, queue_id = queue
        return queue_id not in self._first_queues.get(topic, ())
