"""A prefix with a job on local threads that builds queues, and what its tests ask, count and verify."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from checkpoints.snapshot_store import SnapshotStore
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.topic_admin import create_message_topic, describe
from connectors.local_servers.loopback import free_port
from pipelines.cluster.audit.undelivered import require_delivered
from pipelines.cluster.checkpoint_identity import stored_identity
from pipelines.cluster.cluster_job import ClusterJob, ClusterSettings
from pipelines.cluster.copy_of_state import Checkpoint, copy_stores, local_tables
from pipelines.control.client import ask
from pipelines.control.job_file import JobFile
from pipelines.control.messages import Status, StatusRequest
from pipelines.job_settings import JobSettings
from pipelines.recovery.ops_log import read_log_bounds
from pipelines.recovery.verify import Inputs, Verified, WorkFolder, verify
from popstream import Consumer, Producer
from popstream.errors import NotDeclared
from popstream.kafka_connection import KafkaConnection
from tests.cluster.conftest import ROOT
from tests.cluster.submitted import run
from tests.support.wire import wait_for

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

__all__ = ["OperatedSite"]

WAIT_S = 500.0


class OperatedSite:
    """A prefix with a message topic, and jobs on it, one after the other."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, prefix: str, root: Path) -> None:
        self.spark, self.prefix, self.root = spark, prefix, root
        self.connection = KafkaConnection(kafka.bootstrap_servers)
        self.topic = f"{prefix}.orders"
        self.client: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "prefix": prefix}
        self.port = free_port()
        create_message_topic(self.connection, self.topic, 2)
        (root / "job.toml").write_text(
            f'bootstrap_servers = "{kafka.bootstrap_servers}"\ntopic_prefix = "{prefix}"\n'
            f'folder = "{root / "job"}"\nsnapshots = "{root / "snapshots"}"\n'
        )

    def settings(self, **changed: Any) -> JobSettings:
        fields: dict[str, Any] = {
            "folder": self.root / "job",
            "bootstrap_servers": self.connection.bootstrap_servers,
            "topic_prefix": self.prefix,
            "ops_partitions": 2,
            "results_partitions": 2,
            "flush_interval_s": 1,
            "message_topics": self.topic,
            "api_port": self.port,
        }
        return JobSettings(**fields | changed)

    def job(
        self, name: str = "state", tables: str | None = None, *, take_over: bool = False, **changed: Any
    ) -> ClusterJob:
        cluster = ClusterSettings(checkpoint=str(self.root / name), tables=str(self.root / (tables or name) / "tables"))
        return ClusterJob(self.settings(**changed), cluster, self.connection, self.spark, take_over=take_over)

    def send(self, count: int, first: int = 0) -> None:
        with Producer(**self.client) as producer:
            for number in range(first, first + count):
                producer.send(self.topic, b"%d" % number, key=b"%d" % number)

    def take(self, count: int) -> None:
        """Let a group ack some messages."""
        with Consumer(**self.client, group="billing", topics=[self.topic]) as consumer:
            acked = 0

            def pop() -> bool:
                nonlocal acked
                try:
                    messages = consumer.pop(self.topic, max_messages=8, poll_time_ms=1_000).messages
                except NotDeclared:  # the builder has just begun
                    return False
                if messages:
                    consumer.ack(messages)
                acked += len(messages)
                return acked >= count

            wait_for(pop, patience_s=WAIT_S, look_each_s=0.5)

    def ask(self, request: Any, reply: Any) -> Any:
        return ask(
            JobFile(
                pid=0,
                bootstrap_servers="",
                prefix="",
                folder="",
                address=f"http://localhost:{self.port}",
                token="",
                started_at=0.0,
            ),
            request,
            reply,
            timeout_s=120.0,
        )

    def follow(self, job: ClusterJob, *, is_written: bool = True) -> None:
        """Wait until all is decided, built and written to the tables."""

        def is_done() -> bool:
            assert job.failure is None, job.failure
            status = self.ask(StatusRequest(limit=0), Status)
            read = {name: progress.ends for name, progress in job.answers._watch.progress.last.items()}
            internal = ClusterTopics.of(self.prefix)
            topics = {"build_units": internal.queue_log, **({"audit": internal.audit} if is_written else {})}
            facts = describe(self.connection, list(topics.values()))
            ends = {
                name: dict(read_log_bounds(self.connection, facts[topic]).end_offset) for name, topic in topics.items()
            }
            return status.ops_lag == 0 and all(read.get(name) == ends[name] for name in ends)

        wait_for(is_done, patience_s=WAIT_S, look_each_s=0.5)

    def rows(self, name: str, table: str) -> int:
        return self.spark.read.format("delta").load(str(self.root / name / "tables" / table)).count()

    def verified(self, name: str = "state") -> Verified:
        """What `popstream verify` finds, in this process."""
        url, ops = str(self.root / name), f"{self.prefix}.ops"
        log = read_log_bounds(self.connection, describe(self.connection, [ops])[ops])
        identity = stored_identity(self.spark, url)
        assert identity is not None
        with WorkFolder(self.root / "work") as work:
            work.incoming.mkdir()
            copied = copy_stores(Checkpoint(self.spark, url, identity, log), self.connection, work.incoming)
            inputs = Inputs(
                state=copied.state,
                queues=copied.queues,
                is_copy=True,
                delta=local_tables(self.spark, f"{url}/tables", work.incoming / "tables"),
                log=log,
                connection=self.connection,
                snapshots=SnapshotStore(str(self.root / "snapshots")),
            )
            return verify(inputs, work, processes=1)

    def require_delivered(self, name: str = "state") -> None:
        """What the commands ask for that take a state elsewhere."""
        url = str(self.root / name)
        identity = stored_identity(self.spark, url)
        assert identity is not None
        require_delivered(self.spark, self.connection, url, identity)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the options of the job."""
        options = ["--settings", str(self.root / "job.toml"), "--var", str(ROOT / "var")]
        return run([sys.executable, "-m", "popstream", *arguments, *options], folder=self.root)
