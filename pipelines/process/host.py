"""Everything that `popstream up` and the demo start, in the order that recovery needs, and its orderly end.

```
preflight ─> ownership ─> Kafka (ours, unless one is given) ─> Spark ─> Job ─> metrics ─> status socket ─> job card
          <──────────────────────────────── stopped in reverse ────────────────────────────────
```

Ctrl-C, SIGTERM and SIGHUP interrupt the start, and end `wait` once it is over; the stop itself is not interrupted.
A job that fails for what may pass, as an absent Kafka, is replaced by another one in the same process: see `wait`.
"""

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import structlog
from prometheus_client import start_http_server
from pyspark import SparkContext
from pyspark.sql import SparkSession

from checkpoints.layout import JobFolder
from checkpoints.ownership import Ownership
from connectors.delta.session import QUICK_COMPILER, build_session
from connectors.jars.resolve import JarError, kafka_jars, spark_jars
from connectors.kafka.embedded import EmbeddedKafka
from pipelines.control.job_file import JobCard
from pipelines.control.metrics import Metrics
from pipelines.control.server import StatusServer
from pipelines.loops.periodic import Periodic
from pipelines.process.job import Job
from pipelines.process.jvm import (
    SIGNALS,
    ended_jvm,
    held_signals,
    jvm_has_ended,
    kill_jvm,
    output_in,
    silence_query_errors,
)
from pipelines.process.logs import configure_logs
from pipelines.process.malloc_trim import JVM_ENVIRONMENT, bound_arenas, give_back
from pipelines.process.preflight import reach_kafka, require_ready
from pipelines.process.restarts import Restarts
from pipelines.settings import JobSettings
from popstream.wire.failures import Invalid, Unavailable

__all__ = ["Host"]

_log = structlog.get_logger(__name__)

LOG_FILE = "job.log"
JVM_LOG_FILE = "jvm.log"
KAFKA_FOLDER = "kafka"
# Below the 60 s that `docker/compose.yaml` grants.
STOP_S_MAX = 40.0
STOP_BROKEN_S_MAX = 8.0
# Longer than Spark and the producers may need to see that Kafka does not answer a last question.
STOP_TO_START_AGAIN_S_MAX = 120.0
LOOK_S = 0.25
TRIM_EACH_S = 60.0


class Host:
    """One job with all that it needs, from entry to exit; enter it in the main thread, or signals are left alone.

    Args:
        settings: The job's. Without `bootstrap_servers` a broker is started that keeps its data in the job's folder.
        var: Folder with the jars that `make setup` fetched.
        on_progress: Told, in a few words, what is being done now.
        kafka_port: Port of the broker that is started; 0: any free one.
        metrics_host: Address that metrics are served on.
        log_to_terminal: Log to standard error instead of `job.log` in the folder.

    Raises:
        Invalid: Something is missing or set wrongly.
        Fenced: Another process runs this job.
        Unavailable: Kafka does not answer.
        Corrupt: The log and the state contradict each other.
    """

    job: Job
    spark: SparkSession
    bootstrap_servers: str
    status_server: StatusServer
    kafka: EmbeddedKafka | None = None

    def __init__(
        self,
        settings: JobSettings,
        *,
        var: Path,
        on_progress: Callable[[str], None] = lambda _: None,
        kafka_port: int = 0,
        metrics_host: str = "127.0.0.1",
        log_to_terminal: bool = False,
    ) -> None:
        self.settings = settings
        self.folder = JobFolder(settings.folder.absolute())
        self.card: JobCard | None = None
        self.metrics = Metrics()
        self._var = var.absolute()
        self._say = on_progress
        self._kafka_port = kafka_port
        self._metrics_host = metrics_host
        self._log_to_terminal = log_to_terminal
        self._stack = contextlib.ExitStack()
        self._asked_to_stop = threading.Event()
        self._is_starting = False
        self._gave_up = False
        self._ownership: Ownership | None = None
        self._restarts = Restarts()
        self._between_jobs: str | None = None
        self._job_since = time.monotonic()

    @property
    def obstacles(self) -> list[str]:
        """What keeps the job from deciding or delivering now; without any it is ready."""
        return self.job.obstacles if self._between_jobs is None else [self._between_jobs]

    @property
    def log_file(self) -> Path | None:
        """Where the logs go; None: standard error."""
        return None if self._log_to_terminal else self.folder.root / LOG_FILE

    def wait(self, *, each: Callable[[], None] | None = None, every_s: float = 1.0) -> BaseException | None:
        """Wait for a signal, or a failure that does not pass, and tell the failure.

        After any other one the job is stopped, and started again as soon as Kafka takes connections; a start heals
        whatever was left half done. Meanwhile nothing is decided, and `status` says why.

        Args:
            each: Called every now and then meanwhile, to show how it goes.
            every_s: How often.
        """
        due = 0.0
        while not self._asked_to_stop.wait(LOOK_S):
            if self.kafka is not None and not self.kafka.is_running:
                message = f"the embedded Kafka has ended; the end of {self.kafka.log_file} may say why"
                return Unavailable(message, subject=str(self.kafka.folder))
            if self.job.wait(0):
                failure = self._start_again(self.job.failure or Unavailable("the streaming query ended by itself"))
                if failure is not None:
                    return failure
            if each is not None and time.monotonic() >= due:
                each()
                due = time.monotonic() + every_s
        return self.job.failure if self._between_jobs is None else None

    def ask_to_stop(self) -> None:
        """Make `wait` return, as a signal does; from any thread."""
        self._asked_to_stop.set()

    def __enter__(self) -> Self:
        """Start everything; what was started is stopped again when a later step fails."""
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
        """Stop everything, in reverse; a signal that comes meanwhile changes nothing."""
        self._asked_to_stop.set()  # whoever still waits must not start another job
        self._say("stopping")
        self._stack.close()

    def _start(self) -> None:
        settings, enter = self.settings, self._stack.enter_context
        enter(_umask(0o077))
        enter(self._signals())
        self._step("looking for Java, jars and disk space")
        require_ready(
            self.folder.root,
            self._var,
            with_kafka=not settings.bootstrap_servers,
            ports={
                "--kafka-port": 0 if settings.bootstrap_servers else self._kafka_port,
                "--metrics-port": settings.metrics_port,
            },
        )
        self._ownership = Ownership(self.folder.lock)
        self._stack.callback(self._let_go, self._ownership)
        bound_arenas()
        # Of a job that was killed. From here on nobody else can own a card in this folder.
        self.folder.card.unlink(missing_ok=True)
        # Not with each job of this process: a `popstream verify` may be at work there.
        shutil.rmtree(self.folder.scratch, ignore_errors=True)
        configure_logs(settings.log_level, self.log_file)
        self.bootstrap_servers = settings.bootstrap_servers or self._start_kafka()
        self._step(f"connecting to Kafka at {self.bootstrap_servers}")
        reach_kafka(self.bootstrap_servers)
        self._step("starting Spark")
        self.spark = self._start_spark()
        trimming = Periodic("native_memory", TRIM_EACH_S, give_back)
        trimming.start()
        self._stack.callback(trimming.stop)
        self._step("reconciling state, log and tables")
        self.job = self._make_job()
        self._stack.callback(self._stop_job_at_last)
        self.metrics.tell_ready(lambda: not self.obstacles)
        if settings.metrics_port:
            self._serve_metrics(settings.metrics_port)
        self.status_server = server = enter(StatusServer(self.job))
        self.card = JobCard(
            pid=os.getpid(),
            bootstrap_servers=self.bootstrap_servers,
            prefix=settings.topic_prefix,
            folder=str(self.folder.root),
            address=server.address,
            token=server.token,
            started_at=time.time(),
        )
        self.card.write(self.folder.card)
        self._stack.callback(self.folder.card.unlink, missing_ok=True)

    def _step(self, text: str) -> None:
        """Begin a step, unless somebody wants to stop: the KeyboardInterrupt may have come where it is ignored."""
        if self._asked_to_stop.is_set():
            raise KeyboardInterrupt
        self._say(text)

    def _start_kafka(self) -> str:
        self._step("starting Kafka")
        try:
            jars = kafka_jars(self._var)
        except JarError as error:
            raise Invalid(str(error)) from error
        self.kafka = EmbeddedKafka(self.folder.root / KAFKA_FOLDER, jars=jars, port=self._kafka_port)
        self._stack.enter_context(self.kafka)
        return self.kafka.bootstrap_servers

    def _start_spark(self) -> SparkSession:
        is_ours = SparkContext._active_spark_context is None  # noqa: SLF001 - there is no public way to ask
        try:
            jars = spark_jars(self._var)
        except JarError as error:
            raise Invalid(str(error)) from error
        if is_ours:
            self._stack.enter_context(ended_jvm())
        conf = {
            # Spark would make it in the working directory, which may not be ours to write to.
            "spark.sql.warehouse.dir": str(self.folder.root / "warehouse"),
            # Hadoop sets permissions itself, whatever the umask of the process.
            "spark.hadoop.fs.permissions.umask-mode": "077",
        }
        os.environ.update(JVM_ENVIRONMENT)
        with held_signals(), output_in(None if self._log_to_terminal else self.folder.root / JVM_LOG_FILE):
            heap = self.settings.driver_memory
            # A heap that grows stops everything for a full collection each time.
            options = [f"-Xms{heap}", QUICK_COMPILER]
            session = build_session("popstream", jars, driver_memory=heap, java_options=options, conf=conf)
            if is_ours:
                self._stack.callback(_ended, "spark", session.stop)
        silence_query_errors()
        return session

    def _make_job(self) -> Job:
        assert self._ownership is not None
        resolved: dict[str, Any] = {"folder": self.folder.root}
        if self.settings.message_topics is None:
            resolved["message_topics"] = "" if self.kafka is None else "*"
        settings = self.settings.model_copy(update=resolved)
        return Job(settings, self.bootstrap_servers, self.spark, self._ownership, self.metrics)

    def _start_again(self, failure: BaseException) -> BaseException | None:
        """Replace the job that failed; tell a failure that makes it useless."""
        while True:
            decided = self.job.apply_ops.applied.apply_seq
            ran_s = time.monotonic() - self._job_since if self._between_jobs is None else 0.0
            pause_s = None if jvm_has_ended() else self._restarts.pause_s(failure, decided, ran_s)
            if pause_s is None:
                return failure
            self._between_jobs = f"starting again after: {failure}"
            self.status_server.detach(self._between_jobs)
            self._say(f"the job failed and is started again: {failure}")
            _log.warning("starting_again", error=str(failure), kind=type(failure).__name__, pause_s=pause_s)
            if not self._has_stopped(STOP_TO_START_AGAIN_S_MAX):
                return failure
            if self._asked_to_stop.wait(pause_s) or not self._is_kafka_back():
                return None
            try:
                self.job = self._make_job()
            except Exception as error:  # noqa: BLE001 - the next turn looks whether it may pass
                failure = error
                continue
            self._job_since = time.monotonic()
            self.metrics.count_restart()
            self.status_server.attach(self.job)
            self._between_jobs = None
            self._say("ready again")
            return None

    def _is_kafka_back(self) -> bool:
        """Wait for it; False when somebody wants to stop first, or when it was ours and has ended."""
        while not self._asked_to_stop.is_set() and (self.kafka is None or self.kafka.is_running):
            try:
                reach_kafka(self.bootstrap_servers, timeout_s=LOOK_S)
            except Unavailable as error:
                self._between_jobs = str(error)
                self.status_server.detach(self._between_jobs)
                self._asked_to_stop.wait(LOOK_S)
            else:
                return True
        return False

    def _stop_job_at_last(self) -> None:
        is_broken = self.job.failure is not None or (self.kafka is not None and not self.kafka.is_running)
        self._has_stopped(STOP_BROKEN_S_MAX if is_broken else STOP_S_MAX)

    def _has_stopped(self, timeout_s: float) -> bool:
        """Stop the job in order, but not for ever: Spark waits a minute for a Kafka that is gone.

        What is decided and not delivered by then is in the outbox, and leaves with the next start.
        """
        if self._gave_up:
            return False
        stopping = threading.Thread(target=_ended, args=("job", self.job.stop), name="stop", daemon=True)
        stopping.start()
        deadline = time.monotonic() + timeout_s
        is_hurried = self._asked_to_stop.is_set()
        while stopping.is_alive() and (left_s := deadline - time.monotonic()) > 0:
            stopping.join(min(LOOK_S, left_s))
            if self._asked_to_stop.is_set() and not is_hurried:  # while it was to be started again
                is_hurried, deadline = True, min(deadline, time.monotonic() + STOP_BROKEN_S_MAX)
        if not stopping.is_alive():
            return True
        _log.error("stop_given_up", after_s=timeout_s)
        self._gave_up = True
        kill_jvm()
        stopping.join(STOP_BROKEN_S_MAX)
        return False

    def _let_go(self, ownership: Ownership) -> None:
        # A job that did not stop may still write: then only the end of this process lets another one take over.
        if not self._gave_up:
            ownership.release()

    def _serve_metrics(self, port: int) -> None:
        try:
            server, thread = start_http_server(port, addr=self._metrics_host, registry=self.metrics.registry)
        except OSError as error:
            message = (
                f"metrics cannot be served on {self._metrics_host}:{port}: {error.strerror};"
                " choose another --metrics-port or --metrics-host"
            )
            raise Invalid(message, subject=str(port)) from error
        self._stack.callback(thread.join)
        self._stack.callback(server.server_close)
        self._stack.callback(server.shutdown)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        is_first = not self._asked_to_stop.is_set()
        self._asked_to_stop.set()
        if self._is_starting and is_first:
            raise KeyboardInterrupt


def _ended(what: str, stop: Callable[[], Any]) -> None:
    """Stop one thing; that it could not be stopped in order must not keep the rest running."""
    try:
        stop()
    except Exception:  # noqa: BLE001 - logged whole; whatever it is, there is more to stop
        _log.exception("stop_failed", what=what)


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    """State and tables hold message keys: for this user alone."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
