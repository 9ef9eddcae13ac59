"""The job's own topics: their names and the settings that the job requires, because replays must repeat decisions.

| topic | settings | why |
|---|---|---|
| `<prefix>.ops` | LogAppendTime, delete, uncompressed, 16 MiB, 7 days | operations, the only input of decisions |
| `<prefix>.results` | delete, 1 hour, 32 partitions | answers; each client reads one partition |
| `<prefix>.notifications` | delete, 1 hour | wake-ups of waiting clients; a lost one costs a poll |
| `<prefix>.dead_letters` | delete, kept forever, 16 MiB | messages that no consumer could process |
| `<prefix>.dead_letters_handled` | compact, 1 partition | what became of dead letters, for `popstream dead` |
| `<prefix>.queue_types` | compact, 1 partition | the type of each message topic, for clients |
| `<prefix>.owner` | compact, 1 partition | the job that owns the prefix; only its last record counts |
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from connectors.kafka.topic_admin import BROKER_DEFAULT, FOREVER, NewTopic, TopicAdmin, TopicFacts, open_admin
from popstream.topics.access_rights import require_rights
from popstream.wire.base_errors import Invalid
from popstream.wire.limits import OPS_TOPIC_RECORD_BYTES_MAX, TOPIC_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popstream.kafka_connection import KafkaConnection

__all__ = [
    "Deviation",
    "TopicSettings",
    "Topics",
    "deviations",
    "ensure_topics",
]

CLIENT_ID = "popstream-topics"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PREFIX_LENGTH_MAX = TOPIC_BYTES_MAX - len(".dead_letters_handled")
RESULTS_BYTES_MIN = 1024 * 1024
OPS_RETENTION_MS = 7 * DAY_MS
"""Of an ops topic that is made. Longer: older snapshots can be replayed to the end, at the cost of disk."""
# Retention deletes whole segments: without a new one every ten minutes, records would stay for a week.
SHORT_LIVED_RECORDS = {"cleanup.policy": "delete", "retention.ms": str(HOUR_MS), "segment.ms": "600000"}


class Topics(msgspec.Struct, frozen=True):
    """Names of the topics of one job. Each tenant has a job of its own, with its own prefix.

    >>> Topics.of("popstream").ops
    'popstream.ops'
    """

    ops: str
    results: str
    notifications: str
    dead_letters: str
    dead_letters_handled: str
    queue_types: str
    owner: str

    @classmethod
    def of(cls, prefix: str = "popstream") -> Topics:
        """Return the names for a prefix.

        Raises:
            Invalid: Kafka does not allow such names.
        """
        if not re.fullmatch(r"[A-Za-z0-9._-]+", prefix) or len(prefix) > PREFIX_LENGTH_MAX or prefix.startswith("__"):
            message = (
                f"{prefix!r} cannot start a topic name: use 1 to {PREFIX_LENGTH_MAX} letters, digits, dots, hyphens"
                " and underscores, without two underscores in front"
            )
            raise Invalid(message, subject=prefix)
        return cls.of_any(prefix)

    @classmethod
    def of_any(cls, prefix: str) -> Topics:
        """Return the names for a prefix without checking it."""
        return cls(*(f"{prefix}.{field}" for field in cls.__struct_fields__))

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the ops topic first."""
        return msgspec.structs.astuple(self)

    @property
    def compacted(self) -> dict[str, str]:
        """Why those that must be compacted are."""
        return {
            self.dead_letters_handled: "retention would forget which dead letters were redriven",
            self.queue_types: "retention would delete queue types that producers need",
            self.owner: "retention would delete the owner of the prefix",
        }


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of topics that are created.

    Attributes:
        ops_partitions: More: more queues are decided in parallel, on a cluster. Cannot be changed afterwards.
        results_partitions: More: fewer clients share a partition, so each reads fewer answers to other clients.
        notifications_partitions: As `results_partitions`.
        dead_letters_partitions: More: dead letters can be read in parallel.
        replication_factor: Copies of each topic; -1: the cluster's default.
    """

    ops_partitions: int = 4
    results_partitions: int = 32
    notifications_partitions: int = 4
    dead_letters_partitions: int = 4
    replication_factor: int = BROKER_DEFAULT


class Deviation(msgspec.Struct, frozen=True):
    """One setting of a topic that the job cannot work with."""

    topic: str
    setting: str
    found: str
    required: str
    reason: str

    def __str__(self) -> str:
        """Return one line for the operator."""
        return f"{self.topic}: {self.setting} is {self.found}, must be {self.required}: {self.reason}"


def ensure_topics(
    connection: KafkaConnection,
    topics: Topics,
    settings: TopicSettings | None = None,
    *,
    oldest_snapshot_age_ms: int = 0,
) -> dict[str, TopicFacts]:
    """Create the missing topics, then refuse topics with settings that the job cannot work with.

    Several processes may do it at the same time.

    Args:
        connection: Which Kafka.
        topics: Names of the topics.
        settings: Settings of topics that are created. Existing topics are never altered.
        oldest_snapshot_age_ms: Age of the oldest usable snapshot: the ops topic must keep records this long.

    Returns:
        The facts of each topic, by name.

    Raises:
        Invalid: Kafka's ACLs do not allow what the job does with its topics, or topics have unsuitable settings.
        Unavailable: Kafka does not answer.
    """
    used = {name: ["Read", "Write", "DescribeConfigs"] for name in topics.names}
    require_rights(connection, CLIENT_ID, used)
    with open_admin(connection) as admin:
        existing = admin.describe(topics.names)
        missing = [new for new in _new_topics(topics, settings or TopicSettings()) if new.name not in existing]
        admin.create(missing)
        if missing:
            require_rights(connection, CLIENT_ID, used)
        return _check(admin, topics, oldest_snapshot_age_ms)


def deviations(
    topics: Topics,
    facts: Mapping[str, TopicFacts],
    configs: Mapping[str, Mapping[str, str]],
    *,
    oldest_snapshot_age_ms: int = 0,
) -> list[Deviation]:
    """Return how topics deviate from what the job needs.

    Args:
        topics: Names of the topics.
        facts: Facts of the existing topics, by name.
        configs: Effective settings as Kafka's text, by name.
        oldest_snapshot_age_ms: As in `ensure_topics`.
    """
    found: list[Deviation] = []
    for name in topics.names:
        if name not in facts:
            found.append(Deviation(name, "the topic", "missing", "created", "the job reads or writes it"))
            continue
        rules = _Rules(name, configs[name], found)
        if name in topics.compacted:
            rules.equal("cleanup.policy", "compact", topics.compacted[name])
            continue
        rules.equal("cleanup.policy", "delete", "compaction would delete records")
        if name == topics.ops:
            _check_ops(rules, oldest_snapshot_age_ms)
        elif name == topics.results:
            rules.at_least("max.message.bytes", RESULTS_BYTES_MIN, "a frame of answers must fit")
        elif name == topics.dead_letters:
            why = "a message must fit with the reason added to it"
            rules.at_least("max.message.bytes", OPS_TOPIC_RECORD_BYTES_MAX, why)
    return found


class _Rules:
    """Checks of the settings of one topic; a failed check adds a deviation."""

    def __init__(self, topic: str, config: Mapping[str, str], found: list[Deviation]) -> None:
        self._topic = topic
        self._config = config
        self._found = found

    def equal(self, setting: str, required: str, reason: str) -> None:
        value = self._config[setting]
        if value != required:
            self.add(setting, value, required, reason)

    def at_least(self, setting: str, required: int, reason: str, *, no_limit: int | None = None) -> None:
        value = int(self._config[setting])
        if value < required and value != no_limit:
            self.add(setting, str(value), f"{required} or more", reason)

    def add(self, setting: str, value: str, required: str, reason: str) -> None:
        self._found.append(Deviation(self._topic, setting, value, required, reason))


def _check_ops(rules: _Rules, oldest_snapshot_age_ms: int) -> None:
    rules.equal("message.timestamp.type", "LogAppendTime", "the time of a record decides leases: no client may set it")
    rules.equal("compression.type", "uncompressed", "a record of any size can hide in a compressed batch")
    rules.equal("unclean.leader.election.enable", "false", "decided records could vanish from the log")
    rules.at_least("max.message.bytes", OPS_TOPIC_RECORD_BYTES_MAX, "a large batch of acks must fit")
    reason = "the oldest snapshot could not be replayed to the end; or keep fewer (`snapshots_keep_daily`)"
    rules.at_least("retention.ms", oldest_snapshot_age_ms, reason, no_limit=FOREVER)


def _new_topics(topics: Topics, settings: TopicSettings) -> list[NewTopic]:
    ops = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "compression.type": "uncompressed",
        "max.message.bytes": str(OPS_TOPIC_RECORD_BYTES_MAX),
        "retention.ms": str(OPS_RETENTION_MS),
        "retention.bytes": str(FOREVER),
        "unclean.leader.election.enable": "false",
    }
    dead_letters = {
        "cleanup.policy": "delete",
        "retention.ms": str(FOREVER),
        "retention.bytes": str(FOREVER),
        "max.message.bytes": str(OPS_TOPIC_RECORD_BYTES_MAX),
    }
    results = SHORT_LIVED_RECORDS | {"max.message.bytes": str(4 * RESULTS_BYTES_MIN)}
    copies = settings.replication_factor
    return [
        NewTopic(topics.ops, settings.ops_partitions, copies, ops),
        NewTopic(topics.results, settings.results_partitions, copies, results),
        NewTopic(topics.notifications, settings.notifications_partitions, copies, SHORT_LIVED_RECORDS),
        NewTopic(topics.dead_letters, settings.dead_letters_partitions, copies, dead_letters),
        NewTopic(topics.dead_letters_handled, 1, copies, {"cleanup.policy": "compact"}),
        NewTopic(topics.queue_types, 1, copies, {"cleanup.policy": "compact"}),
        # The segment that is written is not compacted, and the owner writes every two seconds.
        NewTopic(topics.owner, 1, copies, {"cleanup.policy": "compact", "segment.ms": "600000"}),
    ]


def _check(admin: TopicAdmin, topics: Topics, oldest_snapshot_age_ms: int) -> dict[str, TopicFacts]:
    facts = admin.describe(topics.names)
    found = deviations(
        topics,
        facts,
        admin.configs(list(facts)),
        oldest_snapshot_age_ms=oldest_snapshot_age_ms,
    )
    if found:
        message = f"{len(found)} settings of our own topics must be corrected before the job can run:"
        raise Invalid(message, subject=", ".join(topics.names), details=[str(deviation) for deviation in found])
    return facts
