"""The job's own topics: their names, the settings that make decisions repeatable, and the refusal of any others.

| topic | settings | why |
|---|---|---|
| `<prefix>.ops` | LogAppendTime, delete, uncompressed, 16 MiB, 7 days | the only input of a decision: time is data |
| `<prefix>.results` | delete, 1 hour, 32 partitions | answers; a client reads one partition, from its end |
| `<prefix>.notifications` | delete, 1 hour | wake-ups; one missed costs a poll |
| `<prefix>.dead_letters` | delete, kept for ever, 16 MiB | what nobody could process |
| `<prefix>.queue_types` | compact, 1 partition | the type of each message topic, for producers |

The functions here talk to Kafka and retry what is worth it, for at most `TIMEOUT_S`; what remains is `Unavailable` or
`Invalid`.
"""

from __future__ import annotations

import contextlib
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec
from kafka.admin import ConfigFilterType, ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import KafkaError, NoError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code
from kafka.net.compat import KafkaNetClient
from tenacity import retry, retry_if_exception, stop_after_delay, wait_random_exponential

from popstream.wire.failures import Invalid, PopstreamError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "Deviation",
    "TopicFacts",
    "TopicSettings",
    "Topics",
    "check_topics",
    "chosen_topics",
    "create_message_topic",
    "describe",
    "deviations",
    "ensure_topics",
    "retention_ms",
]

MIB = 1024 * 1024
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TIMEOUT_S = 30.0
# Kafka's limit is 249; the longest of our suffixes takes 14.
PREFIX_LENGTH_MAX = 235
OPS_BYTES = 16 * MIB
RESULTS_BYTES_MIN = MIB
FOR_EVER = -1
BROKER_DEFAULT = -1
# Retention removes whole segments: without a new one every ten minutes, an hour would be a week.
SHORT_LIVED = {"cleanup.policy": "delete", "retention.ms": str(HOUR_MS), "segment.ms": "600000"}


class Topics(msgspec.Struct, frozen=True):
    """Names of the topics of one job; several tenants are several jobs, each with its own prefix.

    >>> Topics.of("popstream").ops
    'popstream.ops'
    """

    ops: str
    results: str
    notifications: str
    dead_letters: str
    queue_types: str

    @classmethod
    def of(cls, prefix: str = "popstream") -> Topics:
        """Derive the names.

        Raises:
            Invalid: Kafka allows no topics of these names.
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
        """The names of a job that may have been refused."""
        return cls(*(f"{prefix}.{field}" for field in cls.__struct_fields__))

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, the ops topic first."""
        return msgspec.structs.astuple(self)


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What may be chosen when the topics are created.

    Attributes:
        ops_partitions: More: more queues decided side by side, on a cluster. Can never be changed afterwards.
        ops_retention_ms: Longer: older snapshots can be replayed to the end, more disk.
        ops_retention_bytes: Cap by partition besides the time; -1: none. A cap can remove records before their time.
        results_partitions: More: fewer clients share one, so that each reads fewer answers that are not its own.
        notifications_partitions: As for results.
        dead_letters_partitions: More: faster to read in parallel.
        replication_factor: Copies of each topic; -1: the cluster's default.
    """

    ops_partitions: int = 4
    ops_retention_ms: int = 7 * DAY_MS
    ops_retention_bytes: int = FOR_EVER
    results_partitions: int = 32
    notifications_partitions: int = 4
    dead_letters_partitions: int = 4
    replication_factor: int = BROKER_DEFAULT


class TopicFacts(msgspec.Struct, frozen=True):
    """What Kafka says about a topic.

    `topic_id` is the text of a UUID. It changes when a topic is deleted and made again, which is how that is noticed.
    """

    name: str
    topic_id: str
    partition_count: int


class Deviation(msgspec.Struct, frozen=True):
    """One setting of a topic that the job cannot work with."""

    topic: str
    setting: str
    found: str
    required: str
    reason: str

    def __str__(self) -> str:
        """Say all of it in one line."""
        return f"{self.topic}: {self.setting} is {self.found}, must be {self.required}: {self.reason}"


class _NewTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]


class _Again(Exception):  # noqa: N818 - a signal to tenacity, which reaches nobody else
    """Kafka answered with an error that passes by itself."""


def chosen_topics(names: Iterable[str], globs: Sequence[str], own: Topics | None = None) -> list[str]:
    """The names that match one of `globs`, in order, without Kafka's own topics and those of popstream jobs.

    Those of `own` are never chosen; the topics of other jobs are known by being complete, whatever their prefix.

    >>> own = [*Topics.of("a.b").names]
    >>> chosen_topics([*own, "__consumer_offsets", "orders", "orders.ops", "x1", "x2"], ["orders*", "x?", "a*"])
    ['orders', 'orders.ops', 'x1', 'x2']
    """
    found = set(names)
    suffix = ".ops"
    of_jobs = {
        own
        for name in found
        if name.endswith(suffix) and found.issuperset(Topics.of_any(name.removesuffix(suffix)).names)
        for own in Topics.of_any(name.removesuffix(suffix)).names
    }
    return sorted(
        name
        for name in found - of_jobs - set(own.names if own is not None else ())
        if not name.startswith("__") and any(fnmatchcase(name, pattern) for pattern in globs)
    )


def ensure_topics(
    bootstrap_servers: str,
    topics: Topics,
    settings: TopicSettings | None = None,
    *,
    oldest_snapshot_age_ms: int = 0,
    ops_partitions_expected: int | None = None,
    client: Mapping[str, object] | None = None,
) -> dict[str, TopicFacts]:
    """Create the topics that are missing, then check all as `check_topics` does; may be raced.

    Args:
        bootstrap_servers: `host:port`, several with commas.
        topics: The names.
        settings: For topics that are created; those that exist are never altered.
        oldest_snapshot_age_ms: As in `check_topics`.
        ops_partitions_expected: As in `check_topics`.
        client: More settings for kafka-python's admin client, such as `security_protocol`.

    Returns:
        The facts of each topic, by name.

    Raises:
        Invalid: A topic has settings the job cannot work with, or Kafka refuses to create one.
        Unavailable: Kafka does not answer.
    """
    with _admin(bootstrap_servers, client) as admin:
        existing = _describe(admin, topics.names)
        missing = [new for new in _new_topics(topics, settings or TopicSettings()) if new.name not in existing]
        _create(admin, missing)
        return _check(admin, topics, oldest_snapshot_age_ms, ops_partitions_expected)


def check_topics(
    bootstrap_servers: str,
    topics: Topics,
    *,
    oldest_snapshot_age_ms: int = 0,
    ops_partitions_expected: int | None = None,
    client: Mapping[str, object] | None = None,
) -> dict[str, TopicFacts]:
    """Refuse topics whose settings the job cannot work with; change nothing.

    Args:
        bootstrap_servers: `host:port`, several with commas.
        topics: The names.
        oldest_snapshot_age_ms: Age of the oldest snapshot that must stay usable: the ops topic must reach back as far.
        ops_partitions_expected: Partitions of the ops topic when its first record was written; None: not known yet.
        client: More settings for kafka-python's admin client.

    Returns:
        The facts of each topic, by name.

    Raises:
        Invalid: Its details are *every* deviation of every topic, one line each.
        Unavailable: Kafka does not answer.
    """
    with _admin(bootstrap_servers, client) as admin:
        return _check(admin, topics, oldest_snapshot_age_ms, ops_partitions_expected)


def describe(
    bootstrap_servers: str, names: Sequence[str], *, client: Mapping[str, object] | None = None
) -> dict[str, TopicFacts]:
    """Read topic ids and partition counts, by name; a topic that does not exist is not in the answer.

    Raises:
        Invalid: A name is illegal, or we may not see a topic.
        Unavailable: Kafka does not answer.
    """
    with _admin(bootstrap_servers, client) as admin:
        return _describe(admin, names)


def retention_ms(bootstrap_servers: str, name: str, *, client: Mapping[str, object] | None = None) -> int | None:
    """Read for how long a topic keeps its records, in milliseconds; None: for ever.

    Raises:
        Invalid: We may not see its settings.
        Unavailable: Kafka does not answer, or there is no such topic.
    """
    with _admin(bootstrap_servers, client) as admin:
        found = int(_configs(admin, [name])[name]["retention.ms"])
    return None if found == FOR_EVER else found


def create_message_topic(
    bootstrap_servers: str,
    name: str,
    partitions: int,
    *,
    configs: Mapping[str, str] | None = None,
    replication_factor: int = BROKER_DEFAULT,
    client: Mapping[str, object] | None = None,
) -> TopicFacts:
    """Create a topic for users' messages, and wait until it can be written to.

    Raises:
        Invalid: It exists with another number of partitions, or Kafka refuses it.
        Unavailable: Kafka does not answer.
    """
    with _admin(bootstrap_servers, client) as admin:
        _create(admin, [_NewTopic(name, partitions, replication_factor, dict(configs or {}))])
        facts = _describe(admin, [name])[name]
    if facts.partition_count != partitions:
        message = f"topic {name} exists with {facts.partition_count} partitions, not {partitions}"
        raise Invalid(message, subject=name)
    return facts


def deviations(
    topics: Topics,
    facts: Mapping[str, TopicFacts],
    configs: Mapping[str, Mapping[str, str]],
    *,
    oldest_snapshot_age_ms: int = 0,
    ops_partitions_expected: int | None = None,
) -> list[Deviation]:
    """Compare topics with what the job needs; pure.

    Args:
        topics: The names.
        facts: By name, of the topics that exist.
        configs: By name, the effective settings as Kafka's text.
        oldest_snapshot_age_ms: As in `check_topics`.
        ops_partitions_expected: As in `check_topics`.
    """
    found: list[Deviation] = []
    for name in topics.names:
        if name not in facts:
            found.append(Deviation(name, "the topic", "missing", "created", "the job reads or writes it"))
            continue
        rules = _Rules(name, configs[name], found)
        if name == topics.queue_types:
            rules.equal("cleanup.policy", "compact", "retention would remove what producers must know")
            continue
        rules.equal("cleanup.policy", "delete", "compaction removes records that a later one has the key of")
        if name == topics.ops:
            _check_ops(rules, facts[name], oldest_snapshot_age_ms, ops_partitions_expected)
        elif name == topics.results:
            rules.at_least("max.message.bytes", RESULTS_BYTES_MIN, "a frame of answers must fit")
        elif name == topics.dead_letters:
            rules.at_least("max.message.bytes", OPS_BYTES, "a message must fit with the reason added to it")
    return found


class _Rules:
    """Comparisons on the settings of one topic, each of which may add a deviation."""

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


def _check_ops(rules: _Rules, facts: TopicFacts, oldest_snapshot_age_ms: int, partitions_expected: int | None) -> None:
    rules.equal("message.timestamp.type", "LogAppendTime", "the time of a record decides leases: no client may set it")
    rules.equal("compression.type", "uncompressed", "a record of any size can hide in a compressed batch")
    rules.equal("unclean.leader.election.enable", "false", "decided records could vanish from the log")
    rules.at_least("max.message.bytes", OPS_BYTES, "a large batch of acks must fit")
    reason = "the oldest snapshot could not be replayed to the end"
    rules.at_least("retention.ms", oldest_snapshot_age_ms, reason, no_limit=FOR_EVER)
    if partitions_expected is not None and facts.partition_count != partitions_expected:
        count = str(facts.partition_count)
        rules.add("partition count", count, str(partitions_expected), "queues would move between partitions")


def _new_topics(topics: Topics, settings: TopicSettings) -> list[_NewTopic]:
    ops = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "compression.type": "uncompressed",
        "max.message.bytes": str(OPS_BYTES),
        "retention.ms": str(settings.ops_retention_ms),
        "retention.bytes": str(settings.ops_retention_bytes),
        "unclean.leader.election.enable": "false",
    }
    dead_letters = {
        "cleanup.policy": "delete",
        "retention.ms": str(FOR_EVER),
        "retention.bytes": str(FOR_EVER),
        "max.message.bytes": str(OPS_BYTES),
    }
    results = SHORT_LIVED | {"max.message.bytes": str(4 * RESULTS_BYTES_MIN)}
    copies = settings.replication_factor
    return [
        _NewTopic(topics.ops, settings.ops_partitions, copies, ops),
        _NewTopic(topics.results, settings.results_partitions, copies, results),
        _NewTopic(topics.notifications, settings.notifications_partitions, copies, SHORT_LIVED),
        _NewTopic(topics.dead_letters, settings.dead_letters_partitions, copies, dead_letters),
        _NewTopic(topics.queue_types, 1, copies, {"cleanup.policy": "compact"}),
    ]


@contextlib.contextmanager
def _admin(bootstrap_servers: str, client: Mapping[str, object] | None) -> Iterator[Any]:
    """Open an admin client (untyped: kafka-python has no types), and turn what Kafka raises into our errors."""

    def open_client(**settings: object) -> Any:  # noqa: ANN401
        # An admin client that finds no broker leaves its thread and sockets behind, and no object to close: close what
        # it is made of.
        opened = KafkaNetClient(**settings)
        resources.callback(opened.close)
        return opened

    settings = {
        "bootstrap_servers": bootstrap_servers,
        "bootstrap_timeout_ms": int(TIMEOUT_S * 1000),
        "kafka_client": open_client,
        **(client or {}),
    }
    try:
        with contextlib.ExitStack() as resources:
            admin = KafkaAdminClient(**settings)
            resources.callback(admin.close)
            yield admin
    except (KafkaError, _Again) as error:
        is_passing = isinstance(error, _Again) or error.retriable
        kind: type[PopstreamError] = Unavailable if is_passing else Invalid
        message = f"Kafka at {bootstrap_servers} {'does not answer' if is_passing else 'refuses'}: {error}"
        raise kind(message, subject=bootstrap_servers) from error


def _is_passing(error: BaseException) -> bool:
    return isinstance(error, _Again) or (isinstance(error, KafkaError) and bool(error.retriable))


_retrying = retry(
    retry=retry_if_exception(_is_passing),
    stop=stop_after_delay(TIMEOUT_S),
    wait=wait_random_exponential(multiplier=0.1, max=2.0),
    reraise=True,
)


@_retrying
def _create(admin: Any, wanted: Sequence[_NewTopic]) -> None:  # noqa: ANN401 - kafka-python has no types
    """Create topics and wait for their leaders; one that somebody else has created meanwhile is as good."""
    if not wanted:
        return
    request = {
        new.name: {
            "num_partitions": new.partitions,
            "replication_factor": new.replication_factor,
            "configs": new.configs,
        }
        for new in wanted
    }
    answer = admin.create_topics(request, raise_errors=False)
    refused = []
    for topic in answer["topics"]:
        error = for_code(topic["error_code"])
        if error.retriable:
            raise _Again(error.__name__)
        if error not in (NoError, TopicAlreadyExistsError):
            refused.append(f"{topic['name']}: {error.__name__}: {topic.get('error_message')}")
    if refused:
        message = f"Kafka refuses to create {len(refused)} of {len(wanted)} topics:"
        raise Invalid(message, subject=", ".join(request), details=refused)
    admin.wait_for_topics(list(request))


@_retrying
def _describe(admin: Any, names: Sequence[str]) -> dict[str, TopicFacts]:  # noqa: ANN401
    # For kafka-python, as in the protocol, None is all topics and an empty list is none.
    facts = {}
    for topic in admin.describe_topics(list(names)):
        error = for_code(topic["error_code"])
        if error is UnknownTopicOrPartitionError:
            continue
        if error.retriable:
            passing = f"{topic['name']}: {error.__name__}"
            raise _Again(passing)
        if error is not NoError:
            message = f"Kafka refuses to describe topic {topic['name']}: {error.__name__}"
            raise Invalid(message, subject=topic["name"])
        facts[topic["name"]] = TopicFacts(topic["name"], str(topic["topic_id"]), len(topic["partitions"]))
    return facts


@_retrying
def _configs(admin: Any, names: Sequence[str]) -> dict[str, dict[str, str]]:  # noqa: ANN401
    """Read the effective settings of topics, whether set on the topic or inherited from the broker."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    answer = admin.describe_configs(resources, config_filter=ConfigFilterType.ALL) if resources else {}
    configs = {}
    for name in names:
        # kafka-python drops the error code: a topic that this broker does not know yet has no settings at all.
        entries = answer["topic"][name]
        if not entries:
            passing = f"the settings of {name} cannot be read"
            raise _Again(passing)
        configs[name] = {setting: entry["value"] for setting, entry in entries.items()}
    return configs


def _check(
    admin: Any,  # noqa: ANN401
    topics: Topics,
    oldest_snapshot_age_ms: int,
    ops_partitions_expected: int | None,
) -> dict[str, TopicFacts]:
    facts = _describe(admin, topics.names)
    found = deviations(
        topics,
        facts,
        _configs(admin, list(facts)),
        oldest_snapshot_age_ms=oldest_snapshot_age_ms,
        ops_partitions_expected=ops_partitions_expected,
    )
    if found:
        message = f"{len(found)} settings of our own topics must be corrected before the job can run:"
        raise Invalid(message, subject=", ".join(topics.names), details=[str(deviation) for deviation in found])
    return facts
