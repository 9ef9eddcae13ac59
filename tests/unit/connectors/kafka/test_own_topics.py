"""Claim: every unsuitable setting is reported. Method: valid settings with one of them changed."""

from __future__ import annotations

import pytest

from connectors.kafka.own_topics import DAY_MS, Topics, deviations
from connectors.kafka.topic_admin import TopicFacts
from popstream.wire.base_errors import Invalid, PopstreamError
from popstream.wire.limits import OPS_TOPIC_RECORD_BYTES_MAX

TOPICS = Topics.of("t")
FACTS = {name: TopicFacts(name, "00000000-0000-0000-0000-000000000001", 4) for name in TOPICS.names}
GOOD = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "compression.type": "uncompressed",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": str(OPS_TOPIC_RECORD_BYTES_MAX),
    "retention.ms": str(7 * DAY_MS),
}


def configs(**wrong: dict[str, str]) -> dict[str, dict[str, str]]:
    """Valid settings, with changes by the last word of the topic's name."""
    good = dict.fromkeys(TOPICS.names, GOOD) | {name: {"cleanup.policy": "compact"} for name in TOPICS.compacted}
    return {name: good[name] | wrong.get(name.rpartition(".")[2], {}) for name in TOPICS.names}


def test_valid_settings_pass() -> None:
    """The settings with which `ensure_topics` creates topics."""
    assert deviations(TOPICS, FACTS, configs(), oldest_snapshot_age_ms=7 * DAY_MS) == []


@pytest.mark.parametrize(
    ("topic", "setting", "value"),
    [
        ("ops", "message.timestamp.type", "CreateTime"),
        ("ops", "cleanup.policy", "compact"),
        ("ops", "cleanup.policy", "compact,delete"),
        ("ops", "compression.type", "producer"),
        ("ops", "compression.type", "gzip"),
        ("ops", "unclean.leader.election.enable", "true"),
        ("ops", "max.message.bytes", str(OPS_TOPIC_RECORD_BYTES_MAX - 1)),
        ("ops", "retention.ms", str(DAY_MS - 1)),
        ("results", "cleanup.policy", "compact"),
        ("results", "max.message.bytes", "1048575"),
        ("notifications", "cleanup.policy", "compact"),
        ("dead_letters", "cleanup.policy", "compact"),
        ("dead_letters", "max.message.bytes", "1048588"),
        ("dead_letters_handled", "cleanup.policy", "delete"),
        ("queue_types", "cleanup.policy", "delete"),
        ("owner", "cleanup.policy", "delete"),
    ],
)
def test_each_wrong_setting_is_found(topic: str, setting: str, value: str) -> None:
    """And no other one."""
    found = deviations(TOPICS, FACTS, configs(**{topic: {setting: value}}), oldest_snapshot_age_ms=DAY_MS)
    assert [(one.topic, one.setting, one.found) for one in found] == [(f"t.{topic}", setting, value)]


def test_harmless_differences_pass() -> None:
    """Unlimited retention is long enough, and timestamps of answers decide nothing."""
    results = {"message.timestamp.type": "CreateTime", "retention.ms": "1"}
    harmless = configs(ops={"retention.ms": "-1"}, results=results)
    assert deviations(TOPICS, FACTS, harmless, oldest_snapshot_age_ms=DAY_MS) == []


def test_missing_topic_is_found() -> None:
    """A missing topic has no other deviations."""
    facts = {name: FACTS[name] for name in TOPICS.names if name != TOPICS.results}
    (one,) = deviations(TOPICS, facts, configs())
    assert (one.topic, one.found) == (TOPICS.results, "missing")


@pytest.mark.parametrize("prefix", ["", "a b", "ä", "a/b", "__x", "x" * 229])
def test_prefix_that_kafka_would_refuse(prefix: str) -> None:
    """Refused before anything is created."""
    with pytest.raises(Invalid) as caught:
        Topics.of(prefix)
    assert isinstance(caught.value, PopstreamError)
    assert caught.value.subject == prefix
