"""The settings of a job: from `POPSTREAM_...` variables, a settings file, or options of the command line."""

import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from checkpoints.layout import JobFolder
from checkpoints.snapshot_retention import SnapshotRetention
from connectors.delta.erased_values import RejectedHeads
from connectors.delta.file_access import FOR_GROUP, FOR_USER
from connectors.delta.tables import DATED_TABLES
from connectors.spark_cluster.redaction import DEFAULT_RULE, REDACTION, redacting
from popstream.kafka_connection import KafkaConnection, chosen_connection
from popstream.wire.base_errors import Invalid
from popstream.wire.command import QueueType
from popstream.wire.dedup_id import DEDUP_IDS_MAX_DEFAULT, DEDUP_WINDOW_MS_DEFAULT
from popstream.wire.signing import KEY_ID, SECRET_BYTES_MIN, AdminKey, KeyRing, SigningKey

__all__ = ["OTHER_VARIABLES", "PREFIX", "JobSettings", "KeySetting", "LogFormat", "unknown_variables"]

PREFIX = "POPSTREAM_"
"""What the name of each environment variable begins with; the settings' follow it in capitals."""

OTHER_VARIABLES = {
    "POPSTREAM_ADMIN_KEY_FILE": "as the option `--admin-key-file`",
    "POPSTREAM_API": "as the option `--api` of commands",
    "POPSTREAM_IVY_SETTINGS": "settings file of Ivy for `make setup`, where the jars come from a mirror",
    "POPSTREAM_JARS": "folder of the jars, for images; default: `jars` in that of POPSTREAM_VAR",
    "POPSTREAM_PURE": "1: the Python sources of the kernel decide, although it is compiled",
    "POPSTREAM_VAR": "as the option `--var`",
}
"""The variables that are no settings of a job, with their meanings. No others begin with the prefix."""

API_TOKEN_MIN = 16
"""Minimum number of characters of an API token."""


class LogFormat(StrEnum):
    """Format of the log."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


Moment = Annotated[datetime, AfterValidator(_in_utc)]
KeyId = Annotated[str, StringConstraints(pattern=f"^{KEY_ID}$")]


class KeySetting(BaseModel):
    """A secret, and the time until which it is in use; also written as the secret alone."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    secret: Annotated[SecretStr, Field(min_length=1)]
    until: Moment | None = None


def _as_key(value: Any) -> Any:  # noqa: ANN401 - pydantic checks it
    return {"secret": value} if isinstance(value, (str, SecretStr)) else value


Keys = dict[KeyId, Annotated[KeySetting, BeforeValidator(_as_key)]]


class JobSettings(BaseSettings):
    """The settings of one job. Each description says what a change of the value does."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_file=None, frozen=True, extra="forbid")

    folder: Path = Field(default=Path("var/job"), description="folder of the job: state, checkpoints, Delta tables")
    tables: Path | None = Field(
        default=None,
        description=(
            "folder of the Delta tables, which may be on another disk; empty: `delta` in the job's folder. On a"
            " cluster, use `--tables`"
        ),
    )
    tables_group_readable: bool = Field(
        default=False,
        description="true: the group of the job's user may read the tables, which need a place of their own (`tables`)",
    )
    tables_replica: str = Field(
        default="",
        description=(
            "where the tables are copied to, commit by commit, for readers on other machines: a path, or a URL that"
            " fsspec supports; empty: nowhere. Without effect on a cluster, whose tables lie where `--tables` says"
        ),
    )
    bootstrap_servers: str = Field(default="", description="servers of an existing Kafka; empty: an embedded one")
    kafka_config: Path | None = Field(
        default=None,
        description=(
            "file that says how to connect to a secured Kafka, in the format of Kafka's tools (client.properties);"
            " empty: without encryption and login"
        ),
    )
    kafka_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="port of the embedded Kafka; 0: any free one"
    )
    topic_prefix: str = Field(
        default="popstream", description="prefix of the job's own topics; each tenant has a job and a prefix of its own"
    )
    ops_partitions: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=4, description="partitions of the ops topic, fixed once it exists; more: more tasks read it in parallel"
    )
    results_partitions: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=32,
        description="partitions of the results topic; more: each client reads fewer answers of others",
    )
    records_per_micro_batch_max: Annotated[int, Field(ge=100, le=1_000_000)] = Field(
        default=20_000,
        description=(
            "maximum number of records of a micro-batch, on a cluster for each of up to four cores; more: faster"
            " catch-up, longer micro-batches, more memory"
        ),
    )
    message_topics: str | None = Field(
        default=None,
        description=(
            "message topics whose queues are built: names or patterns with * ? [], separated by commas; empty: none;"
            " default: all topics of an embedded Kafka, none of an existing one"
        ),
    )
    queue_types: dict[str, QueueType] = Field(
        default_factory=dict,
        description="queue type by topic: simple, batch or sparse; by default sparse for compacted topics, else simple",
    )
    build_records_per_micro_batch_max: Annotated[int, Field(ge=100, le=5_000_000)] = Field(
        default=400_000, description="like records_per_micro_batch_max, for the query that builds consume queues"
    )
    build_records_per_task_max: Annotated[int, Field(ge=100, le=5_000_000)] = Field(
        default=50_000, description="records of a message topic that one task reads; fewer: more parallel tasks"
    )
    dedup_window_s: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=DEDUP_WINDOW_MS_DEFAULT / 1000,
        description=(
            "seconds after a message in which others of its queue with the same dedup_id are dropped; higher: later"
            " repeats are recognised, more ids are kept; 0: none is dropped. A change applies to messages read from"
            " then on"
        ),
    )
    dedup_ids_max: Annotated[int, Field(ge=1, le=100_000_000)] = Field(
        default=DEDUP_IDS_MAX_DEFAULT,
        description=(
            "maximum number of ids kept for a queue: beyond it the oldest within dedup_window_s are forgotten, with a"
            " warning, and repeats of their messages are delivered; higher: more space, about 150 bytes each"
        ),
    )
    flush_interval_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=10.0,
        description="seconds between flushes to Delta; higher: larger files, faster answers, staler audit tables",
    )
    outbox_bytes_max: Annotated[int, Field(ge=1 << 20)] = Field(
        default=2 << 30,
        description="limit of the outbox: beyond it the job is not ready and decides nothing until it is delivered",
    )
    stall_s: Annotated[float, Field(ge=0)] = Field(
        default=60.0,
        description=(
            "report the job as not ready when records have waited this many seconds without a decision; 0: never"
        ),
    )
    ticks: bool = Field(
        default=True,
        description="false, for replays: no ticks are sent, and deadlines take effect at the queue's next operation",
    )
    snapshots: str = Field(
        default="",
        description="location of snapshots: a path, or a URL that fsspec supports; empty: in the folder of the job",
    )
    snapshot_interval_s: Annotated[float, Field(ge=0)] = Field(
        default=900.0,
        description="seconds between snapshots; lower: less to replay after a loss; 0: only `popstream snapshot`",
    )
    snapshots_keep: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=4,
        description=(
            "number of newest snapshots kept; the ops topic must keep records as long as the oldest snapshot that is"
            " kept"
        ),
    )
    snapshots_keep_hourly: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=6,
        description="hours (UTC) of which the last snapshot is kept; more: more choices within a day, more space",
    )
    snapshots_keep_daily: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=7,
        description="days of which the last snapshot is kept; 7: as long as a created ops topic keeps records",
    )
    snapshots_keep_weekly: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0,
        description=(
            "weeks of which the last snapshot is kept; 0 by default, because an ops topic keeps records for 7 days"
        ),
    )
    scrub_interval_s: Annotated[float, Field(ge=0)] = Field(
        default=86_400.0,
        description=(
            "seconds in which every block of the stores is read and verified, at 1 MiB/s at least; lower: damage is"
            " found earlier in stores above 84 GiB; 0: never"
        ),
    )
    maintain_interval_s: Annotated[float, Field(ge=0)] = Field(
        default=86_400.0,
        description=(
            "seconds between compactions of the tables; without effect on a cluster; 0: only `popstream maintain`"
        ),
    )
    rejected_heads: RejectedHeads = Field(
        default=RejectedHeads.WHOLE,
        description=(
            "what the table `rejected` keeps of the first 4 KiB of a record that cannot be read, which may be anybody's"
            " data: whole; hash: their SHA-256; none"
        ),
    )
    audit_retention_days: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description=(
            "by table, the days (whole dates, UTC) for which rows are kept; then maintenance deletes them, on a cluster"
            " `popstream maintain` alone. Tables that are not named keep all rows"
        ),
    )
    handle_keys: Keys = Field(
        default_factory=dict,
        description=(
            "secret by key id, to sign receipt handles; `{secret, until}`: the key is in use until then; empty: they"
            " are not signed"
        ),
    )
    handle_key_active: str = Field(
        default="",
        validate_default=True,
        description="id of the key that signs; handles signed by the others stay valid; empty: the only one",
    )
    handle_keys_since: Moment | None = Field(
        default=None,
        description="time from which handles must be signed: when keys were first set; empty: always",
    )
    admin_keys: Keys = Field(
        default_factory=dict,
        description=(
            "secret by key id, as `handle_keys`, one of which must sign operations on queues and groups; empty: they"
            " need no signature"
        ),
    )
    admin_key_active: str = Field(
        default="",
        validate_default=True,
        description="id of the key that signs the job's own operations; empty: the only one",
    )
    admin_keys_since: Moment | None = Field(
        default=None,
        description="time from which these operations must be signed: when keys were first set; empty: always",
    )
    driver_memory: str = Field(default="1g", pattern="^[1-9][0-9]*[kmgtKMGT]$", description="heap of Spark's JVM")
    executors: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=2,
        description=(
            "on a cluster: number of executors; more: more partitions of the ops topic are decided at once, but no more"
            " than the state has: as many as there were cores at the first start, or as `popstream rescale` has set"
        ),
    )
    executor_cores: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1,
        description="on a cluster: cores of each executor; with one, a partition stays with its decoded state",
    )
    executor_memory: str = Field(
        default="1g", description="on a cluster: heap of each executor; Python needs memory in addition"
    )
    spark_conf: dict[str, str] = Field(
        default_factory=dict, description="on a cluster: more settings of Spark, by their names; no secrets"
    )
    hadoop_conf: dict[str, SecretStr] = Field(
        default_factory=dict,
        description=(
            "on a cluster: settings of Hadoop, such as fs.s3a.endpoint, fs.s3a.access.key and fs.s3a.secret.key;"
            " values are not shown"
        ),
    )
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="port of Prometheus metrics; 0: none"
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="address that metrics are served on; 0.0.0.0: all addresses of the host, without authentication",
    )
    metrics_groups_max: Annotated[int, Field(ge=1, le=5_000)] = Field(
        default=200,
        description="groups of topics that metrics show one by one, those with the greatest lag; the others are summed",
    )
    api_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="port of the HTTP API and the status page; 0: none"
    )
    api_host: str = Field(
        default="127.0.0.1",
        description="address that the API is served on; any but a loopback address needs a token",
    )
    api_token: SecretStr = Field(
        default=SecretStr(""),
        description=(
            "secret of at least 16 characters that requests to the API carry; empty: on this machine everybody may look"
            " at the job, and nobody may change anything. Commands with `--api` send it"
        ),
    )
    api_token_file: Path | None = Field(
        default=None, description="file that contains the `api_token`, instead of the setting itself"
    )
    traces: bool = Field(
        default=False,
        description=(
            "true: spans of each micro-batch, flush, snapshot and maintenance are sent to OpenTelemetry as configured"
            " by OTEL_...; needs popstream[traces]; not supported on a cluster"
        ),
    )
    log_level: str = Field(
        default="INFO",
        pattern="^(?i:DEBUG|INFO|WARNING|ERROR|CRITICAL)$",
        description="level of the log; DEBUG shows every micro-batch",
    )
    log_format: LogFormat = Field(
        default=LogFormat.AUTO,
        description="json: a line of JSON for each event; text: for people; auto: json in job.log, text on a terminal",
    )

    @field_validator("admin_keys")
    @classmethod
    def _require_long_secrets(cls, keys: dict[str, KeySetting]) -> dict[str, KeySetting]:
        for key_id, key in keys.items():
            if len(key.secret.get_secret_value().encode()) < SECRET_BYTES_MIN:
                message = f"the secret of {key_id} has less than {SECRET_BYTES_MIN} bytes"
                raise ValueError(message)
        return keys

    @field_validator("handle_key_active", "admin_key_active")
    @classmethod
    def _require_active_key(cls, active: str, info: ValidationInfo) -> str:
        keys: Mapping[str, KeySetting] = info.data.get(f"{str(info.field_name).removesuffix('_active')}s", {})
        if not active and len(keys) == 1:
            active = next(iter(keys))
        if keys and active not in keys:
            message = f"must be one of the keys {', '.join(sorted(keys))}"
            raise ValueError(message)
        if keys and keys[active].until is not None:
            message = f"{active} signs, and cannot have an end: let another key sign first"
            raise ValueError(message)
        return active

    @property
    def handle_ring(self) -> KeyRing | None:
        """The keys of receipt handles, if they are signed."""
        return _ring(self.handle_keys, self.handle_key_active, self.handle_keys_since)

    @property
    def admin_ring(self) -> KeyRing | None:
        """The keys of operations on queues and groups, if they need a signature."""
        return _ring(self.admin_keys, self.admin_key_active, self.admin_keys_since)

    @property
    def keys_of(self) -> list[str]:
        """Of what there are keys: `handles`, `operations`."""
        rings = {"handles": self.handle_ring, "operations": self.admin_ring}
        return [name for name, ring in rings.items() if ring is not None]

    @property
    def admin_key(self) -> AdminKey | None:
        """The key that signs the job's own operations."""
        active = self.admin_key_active
        return AdminKey(active, self.admin_keys[active].secret.get_secret_value()) if self.admin_keys else None

    @field_validator("tables", mode="before")
    @classmethod
    def _require_path(cls, value: object) -> object:
        if "://" in str(value):
            message = "must be a folder, not a URL: mount the storage"
            raise ValueError(message)
        return value

    @field_validator("audit_retention_days")
    @classmethod
    def _require_tables(cls, days: dict[str, int]) -> dict[str, int]:
        if unknown := sorted(set(days) - set(DATED_TABLES)):
            message = f"applies to {', '.join(sorted(DATED_TABLES))}, not to {', '.join(unknown)}"
            raise ValueError(message)
        return days

    @property
    def connection(self) -> KafkaConnection | None:
        """The existing Kafka; None: an embedded one.

        Raises:
            Invalid: The file `kafka_config` is wrong, or nothing names the servers that it is for.
        """
        return chosen_connection(self.bootstrap_servers, self.kafka_config)

    @property
    def job_folder(self) -> JobFolder:
        """The folder of the job, with the place of its tables."""
        return JobFolder(self.folder, self.tables)

    @property
    def umask(self) -> int:
        """The umask of the job: state and tables hold message keys."""
        return FOR_GROUP if self.tables_group_readable else FOR_USER

    @property
    def api_secret(self) -> str:
        """The token of the API, from the setting or its file; empty: there is none.

        Raises:
            Invalid: Both are given, the file cannot be read, or the token is too short or has other characters than
                visible ones of ASCII.
        """
        token, file = self.api_token.get_secret_value(), self.api_token_file
        if file is not None:
            if token:
                message = "api_token and api_token_file are both given: choose one"
                raise Invalid(message)
            try:
                token = file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                message = f"api_token_file {file} cannot be read: {why}"
                raise Invalid(message, subject=str(file)) from error
        elif not token:
            return ""
        if len(token) < API_TOKEN_MIN or not re.fullmatch(r"[!-~]+", token):
            characters = f"{API_TOKEN_MIN} or more visible ASCII characters"
            message = f"the token of the API must have {characters}, as `openssl rand -hex 32` makes them"
            raise Invalid(message)
        return token

    @property
    def session_conf(self) -> dict[str, str]:
        """`hadoop_conf` under Spark's names, for a session that shows none of it. It has secrets: do not log it."""
        if not self.hadoop_conf:
            return {}
        conf = {f"spark.hadoop.{name}": value.get_secret_value() for name, value in self.hadoop_conf.items()}
        return {**conf, REDACTION: redacting(self.hadoop_conf, self.spark_conf.get(REDACTION, DEFAULT_RULE))}

    @property
    def snapshot_retention(self) -> SnapshotRetention:
        """Which snapshots are kept."""
        return SnapshotRetention(
            newest=self.snapshots_keep,
            hourly=self.snapshots_keep_hourly,
            daily=self.snapshots_keep_daily,
            weekly=self.snapshots_keep_weekly,
        )

    @property
    def oldest_snapshot_age_ms(self) -> int:
        """Age that a kept snapshot reaches; 0: snapshots are taken on request only."""
        if not self.snapshot_interval_s:
            return 0
        return self.snapshot_retention.age_ms_max(int(self.snapshot_interval_s * 1000))

    @property
    def message_globs(self) -> list[str]:
        """The names and patterns of `message_topics`."""
        return [glob.strip() for glob in (self.message_topics or "").split(",") if glob.strip()]


def _ring(keys: Mapping[str, KeySetting], active: str, since: datetime | None) -> KeyRing | None:
    if not keys:
        return None
    found = {
        key_id: SigningKey(key.secret.get_secret_value().encode(), None if key.until is None else _ms(key.until))
        for key_id, key in keys.items()
    }
    return KeyRing(found, active, 0 if since is None else _ms(since))


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Return what is wrong with environment variables that begin with the prefix and mean nothing.

    >>> unknown_variables(["POPSTREAM_FOLDER", "POPSTREAM_PURE", "HOME", "POPSTREAM_OPS_PARTITION"])
    ['unknown variable POPSTREAM_OPS_PARTITION: did you mean POPSTREAM_OPS_PARTITIONS?']
    """
    known = [*(f"{PREFIX}{field.upper()}" for field in JobSettings.model_fields), *OTHER_VARIABLES]
    found = []
    for name in sorted(names):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.9)
            hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists all"
            found.append(f"unknown variable {name}: {hint}")
    return found
