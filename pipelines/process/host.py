"""Everything that `popstream up` and the demo start, in the order that recovery needs, and its shutdown.

```
preflight ─> ownership ─> Kafka (embedded, unless one is given) ─> Spark ─> Job ─> HTTP ─> control socket ─> job file
          <──────────────────────────────── stopped in reverse ────────────────────────────────
```

Ctrl-C, SIGTERM and SIGHUP interrupt the start; after the start they end `wait`. They do not interrupt the shutdown.
A job that fails with a transient error, such as an outage of Kafka, is replaced in the same process: see `Host.wait`.
"""

import contextlib
import functools
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import structlog
from pyspark import SparkContext
from pyspark.sql import SparkSession

from broker_state.store.rocks_store import DiskFailed
from checkpoints.ownership import Ownership
from connectors.delta.file_access import files_made_with
from connectors.delta.session import QUICK_COMPILER, build_session
from connectors.delta.spark_errors import spark_errors_kept
from connectors.jars.resolve import JarError, kafka_jars, spark_jars
from connectors.kafka.embedded import EmbeddedKafka
from pipelines.control.answers import JobAnswers
from pipelines.control.job_file import JobFile
from pipelines.control.metric_definitions import Metric
from pipelines.control.metrics import Metrics
from pipelines.control.server import ControlServer
from pipelines.http_api.http_server import HttpServer
from pipelines.http_api.listeners import listeners_of
from pipelines.job_settings import JobSettings
from pipelines.loops.periodic import Periodic
from pipelines.printed_commands import completed_commands
from pipelines.process.job import Job
from pipelines.process.job_topics import ensure_job_topics
from pipelines.process.jvm import ended_jvm, jvm_has_ended, kill_jvm, output_in, silence_query_errors
from pipelines.process.kernel_build import warn_of_stale_build
from pipelines.process.logs import configure_logs, rotate_in_place
from pipelines.process.malloc_trim import limit_arenas, trim
from pipelines.process.open_traces import open_traces
from pipelines.process.preflight import require_ready, require_safe
from pipelines.process.restarts import Restarts
from pipelines.process.signals import handled_signals, held_signals
from popstream.kafka_connection import KafkaConnection
from popstream.reach_kafka import reach_kafka
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from pipelines.process.job_traces import JobTraces

__all__ = ["Host"]

_log = structlog.get_logger(__name__)

LOG_FILE = "job.log"
JVM_LOG_FILE = "jvm.log"
# Below the 60 s that `docker/compose.yaml` grants.
STOP_S_MAX = 40.0
STOP_BROKEN_S_MAX = 8.0
# Longer than Spark and the producers need to time out when Kafka does not answer.
STOP_TO_RESTART_S_MAX = 120.0
POLL_S = 0.25
KAFKA_STARTS_S = 15.0
"""How long a start waits for a Kafka that may be starting at the same time, as after a machine has been started."""
TRIM_INTERVAL_S = 60.0
JVM_LOG_INTERVAL_S = 10.0


class Host:
    """One job with everything that it needs, from entry to exit. Signals are handled only in the main thread.

    Args:
        settings: Settings of the job. Without `bootstrap_servers` an embedded broker is started, with its data in the
            job's folder.
        var: Folder with the jars that `make setup` fetched.
        on_progress: Called with a short description of each step.
        log_to_terminal: Log to standard error instead of `job.log` in the folder.
        take_over: Take the prefix from any owner.

    Attributes:
        job: The running job. A restart replaces it.
        metrics: Counts of the process, over all its jobs.

    Raises:
        Invalid: A requirement is missing, a setting is wrong, or the prefix belongs to another state.
        Fenced: Another process runs this job, or another job with this prefix.
        Unavailable: Kafka does not answer.
        Corrupt: The log and the state contradict each other.
    """

    job: Job
    spark: SparkSession
    connection: KafkaConnection
    answers: JobAnswers
    kafka: EmbeddedKafka | None = None

    def __init__(
        self,
        settings: JobSettings,
        *,
        var: Path,
        on_progress: Callable[[str], None] = lambda _: None,
        log_to_terminal: bool = False,
        take_over: bool = False,
    ) -> None:
        self.settings = settings
        self.folder = settings.job_folder.absolute()
        self.job_file: JobFile | None = None
        self.metrics = Metrics()
        self._var = var.absolute()
        self._report_progress = on_progress
        self._log_to_terminal = log_to_terminal
        self._take_over = take_over
        self._stack = contextlib.ExitStack()
        self._stop_requested = threading.Event()
        self._is_starting = False
        self._is_stop_abandoned = False
        self._ownership: Ownership | None = None
        self._traces: JobTraces | None = None
        self._restarts = Restarts()
        self._restart_reason: str | None = None
        self._job_since = time.monotonic()

    @property
    def not_ready_reasons(self) -> list[str]:
        """What keeps the job from deciding or delivering. Empty: it is ready."""
        return self.job.not_ready_reasons if self._restart_reason is None else [self._restart_reason]

    @property
    def log_file(self) -> Path | None:
        """The log file; None: standard error."""
        return None if self._log_to_terminal else self.folder.root / LOG_FILE

    @property
    def jvm_log_file(self) -> Path | None:
        """The file with the output of the JVM; None: standard output and standard error."""
        return None if self._log_to_terminal else self.folder.root / JVM_LOG_FILE

    def wait(self, *, each: Callable[[], None] | None = None, every_s: float = 1.0) -> BaseException | None:
        """Wait for a signal or a permanent failure, and return the failure, if any.

        After a transient failure the job is stopped, and started again as soon as Kafka accepts connections. The start
        repairs what the failed job left unfinished. Until then nothing is decided, and `status` reports the reason.

        Args:
            each: Called periodically while waiting, to show progress.
            every_s: Seconds between two calls of `each`.
        """
        due = 0.0
        while not self._stop_requested.wait(POLL_S):
            if self.kafka is not None and not self.kafka.is_running:
                message = f"the embedded Kafka has ended; the end of {self.kafka.log_file} may say why"
                return Unavailable(message, subject=str(self.kafka.folder))
            if self.job.wait(0):
                failure = self._restart(self.job.failure or Unavailable("the streaming query ended by itself"))
                if failure is not None:
                    return failure
            if each is not None and time.monotonic() >= due:
                each()
                due = time.monotonic() + every_s
        return self.job.failure if self._restart_reason is None else None

    def request_stop(self) -> None:
        """Make `wait` return, as a signal does. May be called from any thread."""
        self._stop_requested.set()

    def __enter__(self) -> Self:
        """Start everything. When a step fails, what was started before it is stopped."""
        with self._stack:
            self._is_starting = True
            try:
                self._start()
            finally:
                self._is_starting = False
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything, in reverse. A signal meanwhile changes nothing."""
        self._stop_requested.set()  # a thread in `wait` must not start another job
        self._report_progress("stopping")
        self._stack.close()

    def _start(self) -> None:
        settings, enter = self.settings, self._stack.enter_context
        require_safe(settings)
        self._traces = open_traces(settings)
        if self._traces is not None:
            self._stack.callback(self._traces.close)
        enter(files_made_with(settings.umask))
        enter(handled_signals(self._on_signal))
        self._step("checking Java, jars and disk space")
        require_ready(
            self.folder.root,
            self._var,
            tables=self.folder.tables,
            with_kafka=settings.connection is None,
            ports={
                "--kafka-port": 0 if settings.connection else settings.kafka_port,
                "--metrics-port": settings.metrics_port,
                "--api-port": settings.api_port,
            },
        )
        self._ownership = Ownership(self.folder.lock)
        self._stack.callback(self._release_ownership, self._ownership)
        self.folder.root.chmod(0o700)  # also where the group may read tables, which are elsewhere
        limit_arenas()
        # A killed job left its job file behind. This process owns the folder now.
        self.folder.job_file.unlink(missing_ok=True)
        # Only at the start of the process, not of each job: `popstream verify` may use the folder.
        shutil.rmtree(self.folder.scratch, ignore_errors=True)
        configure_logs(settings.log_level, self.log_file, settings.log_format)
        warn_of_stale_build()
        self.connection = settings.connection or self._start_kafka()
        self._step(f"connecting to Kafka at {self.connection}")
        self._reach_kafka()
        # The job does it again at each start of its own: here, what Kafka refuses is known before Spark has started.
        ensure_job_topics(self.connection, settings)
        self._step("starting Spark")
        self.spark = self._start_spark()
        self._start_periodic(Periodic("malloc-trim", TRIM_INTERVAL_S, trim))
        if self.jvm_log_file is not None:
            rotate = functools.partial(rotate_in_place, self.jvm_log_file)
            self._start_periodic(Periodic("jvm-log", JVM_LOG_INTERVAL_S, rotate))
        self._step("reconciling state, log and tables")
        self.job = self._start_first_job()
        self._stack.callback(self._stop_last_job)
        self.metrics.bind_gauges({Metric.READY: lambda: not self.not_ready_reasons})
        self.answers = JobAnswers(self.job, self.metrics)
        if listeners := listeners_of(
            self.settings, self.answers, self.metrics.registry, lambda: self.not_ready_reasons
        ):
            enter(HttpServer(listeners))
        self._write_job_file(enter(ControlServer(self.answers, self.folder.root)))

    def _start_periodic(self, periodic: Periodic) -> None:
        periodic.start()
        self._stack.callback(periodic.stop)

    def _write_job_file(self, control_server: ControlServer) -> None:
        self.job_file = JobFile(
            pid=os.getpid(),
            bootstrap_servers=self.connection.bootstrap_servers,
            kafka_config=self.connection.config_file,
            prefix=self.settings.topic_prefix,
            folder=str(self.folder.root),
            address=control_server.address,
            token=control_server.token,
            started_at=time.time(),
        )
        self.job_file.write(self.folder.job_file)
        self._stack.callback(self.folder.job_file.unlink, missing_ok=True)

    def _step(self, text: str) -> None:
        """Begin a step, unless a stop was requested: its KeyboardInterrupt may have been swallowed by a library."""
        if self._stop_requested.is_set():
            raise KeyboardInterrupt
        self._report_progress(text)

    def _start_kafka(self) -> KafkaConnection:
        self._step("starting Kafka")
        try:
            jars = kafka_jars(self._var)
        except JarError as error:
            raise Invalid(str(error)) from error
        self.kafka = EmbeddedKafka(self.folder.kafka, jars=jars, port=self.settings.kafka_port)
        self._stack.enter_context(self.kafka)
        return self.kafka.connection

    def _reach_kafka(self) -> None:
        """Wait for a Kafka that starts at the same time, and say so at once.

        Raises:
            Unavailable: It accepts no connection in time.
        """
        try:
            reach_kafka(self.connection, timeout_s=0)
        except Unavailable as error:
            self._step(f"{error} Trying again for {KAFKA_STARTS_S:.0f} s")
            reach_kafka(self.connection, timeout_s=KAFKA_STARTS_S)
        if (properties := self.connection.properties) is not None and properties.ignored:
            _log.info("kafka_settings_ignored", file=self.connection.config_file, names=properties.ignored)

    def _start_spark(self) -> SparkSession:
        is_ours = SparkContext._active_spark_context is None  # noqa: SLF001 - there is no public way to ask
        try:
            jars = spark_jars(self._var)
        except JarError as error:
            raise Invalid(str(error)) from error
        if is_ours:
            self._stack.enter_context(ended_jvm())
        # Spark would create it in the working directory, which may be read-only.
        conf = {"spark.sql.warehouse.dir": str(self.folder.root / "warehouse")}
        with held_signals(), output_in(self.jvm_log_file):
            heap = self.settings.driver_memory
            # Each growth of the heap would stop the JVM for a full collection.
            options = [f"-Xms{heap}", QUICK_COMPILER]
            with spark_errors_kept():
                session = build_session("popstream", jars, driver_memory=heap, java_options=options, conf=conf)
            if is_ours:
                self._stack.callback(_stop_quietly, "spark", session.stop)
        silence_query_errors()
        return session

    def _start_first_job(self) -> Job:
        """Start the first job of the process, and once more if the disk has failed: then it is known for damaged."""
        try:
            return self._start_job()
        except DiskFailed as error:
            _log.warning("start_repeated", error=str(error))
            return self._start_job()

    def _start_job(self) -> Job:
        assert self._ownership is not None
        resolved: dict[str, Any] = {"folder": self.folder.root, "tables": self.folder.tables}
        if self.settings.message_topics is None:
            resolved["message_topics"] = "" if self.kafka is None else "*"
        settings = self.settings.model_copy(update=resolved)
        with spark_errors_kept():
            job = Job(
                settings,
                self.connection,
                self.spark,
                self._ownership,
                self.metrics,
                take_over=self._take_over,
                traces=self._traces,
            ).start()
        # Once: two jobs that restart must not take the prefix from each other by turns.
        self._take_over = False
        return job

    def _restart(self, failure: BaseException) -> BaseException | None:
        """Replace the failed job. Return the failure that rules a restart out, or None."""
        while True:
            decided = self.job.applied.apply_seq
            ran_s = time.monotonic() - self._job_since if self._restart_reason is None else 0.0
            pause_s = None if jvm_has_ended() else self._restarts.pause_s(failure, decided, ran_s)
            if pause_s is None:
                return failure
            reason = completed_commands(str(failure), elsewhere=True)
            self._restart_reason = f"starting again after: {reason}"
            self.answers.detach(self._restart_reason)
            self._report_progress(f"the job failed and is started again: {reason}")
            _log.warning("job_restarting", error=str(failure), kind=type(failure).__name__, pause_s=pause_s)
            if not self._stop_job(STOP_TO_RESTART_S_MAX):
                return failure
            try:
                if self._stop_requested.wait(pause_s) or not self._is_kafka_back():
                    return None
                self.job = self._start_job()
            except Exception as error:  # noqa: BLE001 - the next turn classifies it
                failure = error
                continue
            self._job_since = time.monotonic()
            self.metrics.count_restart()
            self.answers.attach(self.job)
            self._restart_reason = None
            self._report_progress("ready again")
            return None

    def _is_kafka_back(self) -> bool:
        """Wait until Kafka accepts connections. False: a stop was requested first, or the embedded broker has ended."""
        while not self._stop_requested.is_set() and (self.kafka is None or self.kafka.is_running):
            try:
                reach_kafka(self.connection, timeout_s=POLL_S)
            except Unavailable as error:
                self._restart_reason = str(error)
                self.answers.detach(self._restart_reason)
                self._stop_requested.wait(POLL_S)
            else:
                return True
        return False

    def _stop_last_job(self) -> None:
        is_broken = self.job.failure is not None or (self.kafka is not None and not self.kafka.is_running)
        self._stop_job(STOP_BROKEN_S_MAX if is_broken else STOP_S_MAX)

    def _stop_job(self, timeout_s: float) -> bool:
        """Stop the job; after `timeout_s` kill the JVM instead and return False. Spark waits a minute for a lost Kafka.

        What is decided and not delivered by then is in the outbox, and the next start delivers it.
        """
        if self._is_stop_abandoned:
            return False
        stopping = threading.Thread(target=_stop_quietly, args=("job", self.job.stop), name="stop-job", daemon=True)
        stopping.start()
        deadline = time.monotonic() + timeout_s
        is_hurried = self._stop_requested.is_set()
        while stopping.is_alive() and (left_s := deadline - time.monotonic()) > 0:
            stopping.join(min(POLL_S, left_s))
            if self._stop_requested.is_set() and not is_hurried:  # requested during a restart
                is_hurried, deadline = True, min(deadline, time.monotonic() + STOP_BROKEN_S_MAX)
        if not stopping.is_alive():
            return True
        _log.error("stop_abandoned", after_s=timeout_s)
        self._is_stop_abandoned = True
        kill_jvm()
        stopping.join(STOP_BROKEN_S_MAX)
        return False

    def _release_ownership(self, ownership: Ownership) -> None:
        # A job that did not stop may still write: then the folder stays locked until this process ends.
        if not self._is_stop_abandoned:
            ownership.release()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        is_first = not self._stop_requested.is_set()
        self._stop_requested.set()
        if self._is_starting and is_first:
            raise KeyboardInterrupt


def _stop_quietly(what: str, stop: Callable[[], Any]) -> None:
    """Stop one part and log its error, so that the rest is stopped as well."""
    try:
        stop()
    except Exception:  # noqa: BLE001 - logged with its traceback; there is more to stop
        _log.exception("stop_failed", what=what)
