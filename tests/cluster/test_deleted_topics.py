"""Claim: after the topics of built queues and of attempts were deleted, a start makes them anew: the message topics are
read again, and no message is built twice. (What the notes of attempts are for is in test_poison.py.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.topic_admin import describe, open_admin
from pipelines.cluster.keyed_log import KeyedLog
from pipelines.recovery.ops_log import read_log_bounds
from tests.cluster.job_here import until

if TYPE_CHECKING:
    from tests.cluster.operated_site import OperatedSite

MESSAGES = 60


def test_messages_are_built_once_after_the_topics_of_queues_and_attempts_were_deleted(site: OperatedSite) -> None:
    internal = ClusterTopics.of(site.prefix)

    def records_in(topic: str) -> int:
        return sum(read_log_bounds(site.connection, describe(site.connection, [topic])[topic]).end_offset.values())

    def known_queues() -> int:
        with KeyedLog(site.connection, internal.queues) as log:
            return len({key for key, _ in log.to_end()})

    with site.job() as job:
        site.send(MESSAGES)
        site.take(MESSAGES // 2)
        site.follow(job)
        assert known_queues() == 2
    scanned = records_in(internal.queue_log)
    with open_admin(site.connection) as admin:
        admin.delete(internal.queues)
        admin.delete(internal.attempts)
    with site.job() as job:
        # Of each of two queues: that it begins, and what is read of it again.
        until(lambda: records_in(internal.queue_log) >= scanned + 4, job)
        site.follow(job)
        site.send(MESSAGES, MESSAGES)
        site.take(MESSAGES)
        site.follow(job)
        assert known_queues() == 2, "the next start need not read them again"
    assert describe(site.connection, [internal.attempts]).keys() == {internal.attempts}
    found = site.verified()
    assert found.differences == []
    assert found.units is not None
    assert (found.units.in_delta, found.units.in_log) == (2 * MESSAGES, 2 * MESSAGES)
    assert site.rows("state", "consume_queue") == 2 * MESSAGES
