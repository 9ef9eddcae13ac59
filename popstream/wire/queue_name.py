"""The name of a queue."""

from __future__ import annotations

__all__ = ["QueueName"]

QueueName = tuple[str, int]
"""(message topic, queue id): the queue id is the partition of the topic."""
