"""The job of a demo on a Spark cluster of this machine: a master, two workers of one core, a driver as users start it.

While the demo runs, an executor, a worker and the driver are killed. A supervisor would start the driver again, and so
does this.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from pyspark.sql import SparkSession

from checkpoints.spark_progress import committed_end
from connectors.delta.duckdb_tables import DuckDbTables
from connectors.delta.session import build_session
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import table_path
from connectors.jars.resolve import kafka_jars, spark_jars
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics
from connectors.spark_cluster.packed_environment import pack
from connectors.spark_cluster.standalone import StandaloneCluster
from pipelines.cluster.checkpoint_layout import AUDIT, DECIDE_OPS
from pipelines.demo.demo_summary import PeakMemory
from pipelines.demo.evidence import count_records
from pipelines.demo.job_site import Progress
from pipelines.demo.processes import peak_mib
from pipelines.demo.view import View
from pipelines.job_settings import JobSettings, KeySetting
from pipelines.process.jvm import ended_jvm, jvm_pid
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid, PopstreamError, Unavailable

__all__ = ["ClusterSite"]

JOB_CODE = Path(__file__).parents[2]
"""Where the packages of the job are."""

_READ = ("deliveries", "commit_positions")
_DONE = """
    SELECT sum(done) FROM (
        SELECT max(to_offset) AS done FROM commit_positions WHERE topic = $topic AND "group" IS NOT NULL
        GROUP BY queue_id, "group")
"""
_DEAD_LETTERED = "SELECT sum(last_offset - first_offset + 1) FROM deliveries WHERE step = 'dead_lettered'"
_DRIVER_STARTS_MAX = 5
_READY, _READY_S = "popstream: ready", 180.0
_LINES_SHOWN = 20
_STOP_S = 60.0


class Kill(NamedTuple):
    """What is killed, once a share of all messages is done. `do` returns False if there is none at the moment."""

    what: str
    at: float
    do: Callable[[], bool]


class ClusterSite:
    """See `JobSite`. The arguments are those of `EmbeddedSite`.

    Raises:
        Invalid: The settings name a Kafka: this demo has its own.
    """

    # The driver may have been killed a moment ago.
    settle_s = 400.0

    spark: SparkSession

    def __init__(self, settings: JobSettings, *, var: Path, view: View) -> None:
        if settings.bootstrap_servers:
            message = "the demo on a cluster has an embedded Kafka"
            raise Invalid(message)
        self._settings = settings
        self._var = var
        self._view = view
        self._root = settings.folder
        self._stack = contextlib.ExitStack()
        self._driver: subprocess.Popen[bytes] | None = None
        self._driver_starts = 0
        self._kills = deque(
            (
                Kill("an executor", 0.2, self._kill_executor),
                Kill("a worker", 0.4, self._kill_worker),
                Kill("the driver", 0.6, self._kill_driver),
            )
        )
        self._last_kill_at = 0.0
        self.topics = Topics.of(settings.topic_prefix)

    @property
    def connection(self) -> KafkaConnection:
        """See `JobSite`."""
        return self._kafka.connection

    @property
    def delta(self) -> Path:
        """See `JobSite`."""
        return self._root / "state" / "tables"

    def __enter__(self) -> Self:
        """Start everything."""
        with self._stack:
            self._root.mkdir(parents=True, exist_ok=True)
            self._view.say("starting Kafka")
            self._kafka = self._stack.enter_context(EmbeddedKafka(self._root / "kafka", jars=kafka_jars(self._var)))
            self._view.say("packing popstream for the executors")
            self._environment = self._unpacked_environment()
            self._view.say("starting a Spark cluster: a master, two workers of one core")
            self._cluster = self._stack.enter_context(StandaloneCluster(self._root / "cluster"))
            self._write_settings()
            self._view.say("starting the driver by `popstream submit`")
            self._stack.callback(self._stop_driver)
            self._start_driver()
            self._wait_until_ready()
            self._stack.enter_context(ended_jvm())
            self.spark = build_session("popstream-demo-tables", spark_jars(self._var))
            self._stack.callback(self.spark.stop)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self._stack.close()

    def require_running(self) -> None:
        """Start the driver again if it has ended, as a supervisor does; raise Unavailable if that does not help."""
        assert self._driver is not None, "it has been started"
        if self._driver.poll() is None:
            return
        if self._driver_starts == _DRIVER_STARTS_MAX:
            message = f"the driver has ended {self._driver_starts} times, see {self._driver_log}"
            raise Unavailable(message)
        self._start_driver()

    def progress(self, topic: str, lanes_max: int) -> Progress:  # noqa: ARG002 - of one topic there are no others
        """See `JobSite`; as the tables tell it, which follow in a few seconds."""
        done = self._number(_DONE, {"topic": topic})
        dead_lettered = self._number(_DEAD_LETTERED)
        return Progress(done, dead_lettered, f"  done {done}  dead letters {dead_lettered}")

    def disturb(self, share_done: float) -> None:
        """Kill an executor, then a worker, then the driver: each once the job has done more since the last kill."""
        if self._kills and share_done >= self._kills[0].at and share_done > self._last_kill_at:
            kill = self._kills[0]
            if kill.do():
                self._view.say(f"killed {kill.what}")
                self._kills.popleft()
                self._last_kill_at = share_done

    def is_settled(self, records: int) -> bool:
        """See `JobSite`."""
        if self._kills:  # the tables have come so late that all was done at once
            self.disturb(self._last_kill_at + 1)
            return False
        state = self._root / "state"
        decided = committed_end(state / DECIDE_OPS, self.topics.ops)
        if sum(decided.values()) < records:
            return False
        audit = ClusterTopics.of(self._settings.topic_prefix).audit
        written = committed_end(state / AUDIT, audit)
        return sum(written.values()) >= count_records(self.connection, audit)

    def peak_memory(self) -> PeakMemory:
        """See `JobSite`; the JVM is that of the driver."""
        return PeakMemory(
            python=peak_mib(os.getpid()),
            jvm=peak_mib(jvm_pid()),
            kafka=peak_mib(self._kafka.pid),
        )

    def _unpacked_environment(self) -> Path:
        archive, unpacked = self._root / "environment.zip", self._root / "environment"
        pack(archive, wheels=self._var / "wheels", own=JOB_CODE)
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(unpacked)
        return unpacked

    def _write_settings(self) -> None:
        settings = self._settings
        keys = "".join(
            f"\n[{name}]\n"
            + "".join(f'"{key}" = "{setting.secret.get_secret_value()}"\n' for key, setting in keys.items())
            for name, keys in _secrets(settings).items()
        )
        self._settings_file = self._root / "settings.toml"
        self._settings_file.touch(mode=0o600)
        self._settings_file.write_text(
            f'bootstrap_servers = "{self.connection.bootstrap_servers}"\n'
            f'topic_prefix = "{settings.topic_prefix}"\n'
            f"ops_partitions = {settings.ops_partitions}\n"
            f'message_topics = "{settings.message_topics}"\n'
            f"flush_interval_s = {settings.flush_interval_s}\n"
            "[spark_conf]\n"
            '"spark.ui.enabled" = "false"\n'
            '"spark.driver.host" = "127.0.0.1"\n'
            '"spark.driver.bindAddress" = "127.0.0.1"\n'
            f"{keys}"
        )

    def _start_driver(self) -> None:
        self._driver_starts += 1
        command = [sys.executable, "-m", "popstream", "submit", "--master", self._cluster.master_url]
        command += ["--checkpoint", str(self._root / "state"), "--environment", f"local:{self._environment}"]
        command += ["--settings", str(self._settings_file), "--var", str(self._var), "--python", sys.executable]
        with self._driver_log.open("ab") as log:
            self._driver = subprocess.Popen(  # noqa: S603 - the command is ours
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=JOB_CODE, start_new_session=True
            )

    def _wait_until_ready(self) -> None:
        assert self._driver is not None, "it has been started"
        deadline_s = time.monotonic() + _READY_S
        while _READY not in self._driver_log.read_text(errors="replace"):
            if self._driver.poll() is not None or time.monotonic() > deadline_s:
                lines = self._driver_log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:]
                message = "the driver has not started; the end of its log:"
                raise Unavailable(message, subject=str(self._driver_log), details=lines)
            time.sleep(0.2)

    @property
    def _driver_log(self) -> Path:
        return self._root / "driver.log"

    def _stop_driver(self) -> None:
        assert self._driver is not None, "it has been started"
        self._signal_driver(signal.SIGTERM)
        try:
            self._driver.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._signal_driver(signal.SIGKILL)
            self._driver.wait()

    def _kill_executor(self) -> bool:
        pids = self._cluster.executor_pids()
        if pids:
            self._cluster.kill_executor(pids[0])
        return bool(pids)

    def _kill_worker(self) -> bool:
        self._cluster.kill_worker(0)
        self._cluster.start_worker(0)
        return True

    def _kill_driver(self) -> bool:
        self._signal_driver(signal.SIGKILL)
        assert self._driver is not None, "it has been started"
        self._driver.wait()
        return True

    def _signal_driver(self, number: signal.Signals) -> None:
        """Send a signal to the JVM of the driver and to its Python, which are one group of processes."""
        assert self._driver is not None, "it has been started"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._driver.pid, number)

    def _number(self, sql: str, parameters: Mapping[str, object] | None = None) -> int:
        """Return a number from the tables; 0 as long as there are none."""
        try:
            snapshots = [open_snapshot(table_path(self.delta, name)) for name in _READ]
        except PopstreamError:
            return 0
        with DuckDbTables(snapshots) as tables:
            ((number,),) = tables.rows(sql, parameters)
        return int(number or 0)


def _secrets(settings: JobSettings) -> Mapping[str, Mapping[str, KeySetting]]:
    """Return the settings that map ids to secrets, by name."""
    return {"handle_keys": settings.handle_keys, "admin_keys": settings.admin_keys}
