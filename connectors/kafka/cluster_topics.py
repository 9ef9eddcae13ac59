"""The topics that a job on a cluster has besides those of every job.

| topic | settings | why |
|---|---|---|
| `<prefix>.cluster_audit` | delete, 7 days, 16 MiB | audit rows and dead letters, on their way to Delta |
| `<prefix>.cluster_deadlines` | compact, 1 partition | the deadlines of each shard, for the ticker |
| `<prefix>.cluster_attempts` | compact, 1 partition | records that are decided alone, after a worker has ended twice |
| `<prefix>.cluster_queue_log` | delete, 7 days, 16 MiB | what was read of message topics, on its way to their queues |
| `<prefix>.cluster_queues` | compact, 1 partition | how far each queue is built, for the driver |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from connectors.kafka.topic_admin import BROKER_DEFAULT, FOREVER, NewTopic, open_admin
from popstream.topics.access_rights import require_rights
from popstream.wire.base_errors import Invalid
from popstream.wire.limits import OPS_TOPIC_RECORD_BYTES_MAX

if TYPE_CHECKING:
    from connectors.kafka.topic_admin import TopicFacts
    from popstream.kafka_connection import KafkaConnection

__all__ = ["ClusterTopics", "ensure_cluster_topics"]

_DAY_MS = 86_400_000


class ClusterTopics(msgspec.Struct, frozen=True):
    """Their names.

    >>> ClusterTopics.of("popstream").audit
    'popstream.cluster_audit'
    """

    audit: str
    deadlines: str
    attempts: str
    queue_log: str
    queues: str

    @classmethod
    def of(cls, prefix: str) -> ClusterTopics:
        """Return the names for a prefix that `Topics.of` allows."""
        return cls(*(f"{prefix}.cluster_{field}" for field in cls.__struct_fields__))

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return msgspec.structs.astuple(self)


def ensure_cluster_topics(
    connection: KafkaConnection, topics: ClusterTopics, audit_partitions: int
) -> dict[str, TopicFacts]:
    """Create those that are missing, and return the facts of each, by name.

    Args:
        connection: Which Kafka.
        topics: Their names.
        audit_partitions: Partitions of a new audit topic, and of a new log of queues.

    Raises:
        Invalid: One has another `cleanup.policy`, or Kafka's ACLs do not allow what the job does with it.
        Unavailable: Kafka does not answer.
    """
    used = {name: ["Read", "Write", "DescribeConfigs"] for name in topics.names}
    require_rights(connection, "popstream-topics", used)
    split = {topics.audit, topics.queue_log}
    policies = {name: "delete" if name in split else "compact" for name in topics.names}
    passing = {
        "retention.ms": str(7 * _DAY_MS),
        # Or the broker's default could delete what waits, whatever its age.
        "retention.bytes": str(FOREVER),
        "max.message.bytes": str(OPS_TOPIC_RECORD_BYTES_MAX),
    }
    with open_admin(connection) as admin:
        existing = admin.describe(topics.names)
        settings = {
            topics.audit: passing,
            topics.deadlines: {"segment.ms": "600000"},
            topics.attempts: {},
            # The driver compares the broker's clock with its own (log_queue_writer.py).
            topics.queue_log: {**passing, "message.timestamp.type": "LogAppendTime"},
            topics.queues: {"segment.ms": "600000"},
        }
        new = {
            name: NewTopic(
                name,
                audit_partitions if name in split else 1,
                BROKER_DEFAULT,
                {"cleanup.policy": policies[name], **settings[name]},
            )
            for name in topics.names
        }
        admin.create([new[name] for name in topics.names if name not in existing])
        configs = admin.configs(topics.names)
        for name, policy in policies.items():
            if (found := configs[name]["cleanup.policy"]) != policy:
                message = f"{name}: cleanup.policy is {found}, must be {policy}"
                raise Invalid(message, subject=name)
        return admin.describe(topics.names)
