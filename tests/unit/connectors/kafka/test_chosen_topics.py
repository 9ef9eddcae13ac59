"""The topics that a job reads messages from (connectors/kafka/chosen_topics.py)."""

from connectors.kafka.chosen_topics import chosen_topics
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.own_topics import Topics

OWN = Topics.of("t").names


def test_topics_of_other_jobs_are_not_chosen_also_of_older_ones() -> None:
    """A job of an older version has no owner topic, and none for handled dead letters."""
    older = set(Topics.of("older").names) - {"older.owner", "older.dead_letters_handled"}
    assert chosen_topics([*OWN, *older, "orders", "lone.owner"], ["*"]) == ["lone.owner", "orders"]


def test_topics_of_jobs_on_a_cluster_are_not_chosen() -> None:
    """A job that read its own log of queues would write to it for each record of it."""
    of_another = [*Topics.of("other").names, *ClusterTopics.of("other").names]
    own = ClusterTopics.of("t").names
    names = [*OWN, *own, *of_another, "orders", "lone.cluster_audit"]
    assert chosen_topics(names, ["*"], "t") == ["lone.cluster_audit", "orders"]
    assert chosen_topics([*own, "orders"], ["*"], "t") == ["orders"], "while the other topics are being made"
