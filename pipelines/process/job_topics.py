"""The topics that a job needs: its own, which it creates, and the message topics that its settings name."""

from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from connectors.kafka.topic_admin import TopicFacts
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection
from popstream.topics.access_rights import require_rights

__all__ = ["ensure_job_topics"]


def ensure_job_topics(connection: KafkaConnection, settings: JobSettings) -> dict[str, TopicFacts]:
    """Create the topics of the job that are missing, and return the facts of all, by name.

    Raises:
        Invalid: A topic has unsuitable settings, or Kafka's ACLs do not allow the job what it does with one. Topics
            that only match a pattern of `message_topics` are left out then (`TopicReader.choose`).
        Unavailable: Kafka does not answer.
    """
    facts = ensure_topics(
        connection,
        Topics.of(settings.topic_prefix),
        TopicSettings(ops_partitions=settings.ops_partitions, results_partitions=settings.results_partitions),
        oldest_snapshot_age_ms=settings.oldest_snapshot_age_ms,
    )
    named = [glob for glob in settings.message_globs if not {*glob} & {*"*?["}]
    if named:
        require_rights(connection, "popstream-builder", {name: ["Read", "DescribeConfigs"] for name in named})
    return facts
