"""What may be set, in one place: by `POPSTREAM_...` variables, a settings file, or the options of the command line."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from popstream.wire.command import QueueType

__all__ = ["JobSettings"]


class JobSettings(BaseSettings):
    """The settings of one job. Each says what moves when it moves."""

    model_config = SettingsConfigDict(env_prefix="POPSTREAM_", env_file=None, frozen=True, extra="forbid")

    folder: Path = Field(default=Path("var/job"), description="state, checkpoint and Delta tables of this job")
    bootstrap_servers: str = Field(default="", description="an existing Kafka; empty: an embedded one")
    topic_prefix: str = Field(default="popstream", description="one prefix is one tenant and one job")
    ops_partitions: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=4, description="fixed once the topic exists; more: more tasks read the log in parallel"
    )
    results_partitions: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=32, description="more: a client reads fewer answers that are not its own"
    )
    records_per_batch_max: Annotated[int, Field(ge=100, le=1_000_000)] = Field(
        default=20_000, description="more: higher throughput behind the log, longer micro-batches, more memory"
    )
    message_topics: str | None = Field(
        default=None,
        description=(
            "topics whose queues are built: names or patterns with * ? [], separated by commas; an empty text: none;"
            " by default all of an embedded Kafka, none of another"
        ),
    )
    queue_types: dict[str, QueueType] = Field(
        default_factory=dict,
        description="type by topic: simple, batch or sparse; by default sparse if Kafka compacts it, else simple",
    )
    build_records_per_batch_max: Annotated[int, Field(ge=100, le=5_000_000)] = Field(
        default=400_000, description="as records_per_batch_max, of the query that builds queues"
    )
    build_records_per_task_max: Annotated[int, Field(ge=100, le=5_000_000)] = Field(
        default=50_000, description="records of a message topic that one task reads; fewer: more tasks at the same time"
    )
    flush_interval_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=10.0, description="longer: fewer and larger Delta files, answers sooner, an older audit"
    )
    outbox_bytes_max: Annotated[int, Field(ge=1 << 20)] = Field(
        default=2 << 30, description="beyond it the job stands still, not ready, until Delta and Kafka have caught up"
    )
    ticks: bool = Field(
        default=True,
        description="false, for replays: no ticks are written, and what is due waits for the queue's next operation",
    )
    snapshots: str = Field(
        default="",
        description="where snapshots are kept: a path, or a URL that fsspec knows; empty: in the folder, on its disk",
    )
    snapshot_interval_s: Annotated[float, Field(ge=0)] = Field(
        default=900.0, description="shorter: less of the log to replay after a loss; 0: only when asked"
    )
    snapshots_keep: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=4, description="more: older states to go back to; the ops topic must reach back as far"
    )
    maintain_interval_s: Annotated[float, Field(ge=0)] = Field(
        default=86_400.0, description="how often the tables are compacted; 0: only by `popstream maintain`"
    )
    handle_keys: dict[str, SecretStr] = Field(
        default_factory=dict, description="key id to secret; empty: handles are not signed"
    )
    handle_key_active: str = Field(default="", description="the key that signs; the others are still good")
    driver_memory: str = Field(default="1g", description="heap of the JVM")
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="Prometheus metrics; 0: none")
    log_level: str = Field(default="INFO", description="DEBUG shows every micro-batch")

    @property
    def message_globs(self) -> list[str]:
        """`message_topics` one by one."""
        return [glob.strip() for glob in (self.message_topics or "").split(",") if glob.strip()]
