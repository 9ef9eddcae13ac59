"""Everything that `popstream up` and the demo start, in the order that recovery needs, and its orderly end.

```
preflight ─> ownership ─> Kafka (ours, unless one is given) ─> Spark ─> Job ─> metrics ─> status socket ─> job card
          <──────────────────────────────── stopped in reverse ────────────────────────────────
```

Ctrl-C, SIGTERM and SIGHUP interrupt the start, and end `wait` once it is over; the stop itself is not interrupted.
"""

import contextlib
import os
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

from broker_state.errors import Invalid, Unavailable
from checkpoints.layout import JobFolder
from checkpoints.ownership import Ownership
from connectors.delta.session import build_session
from connectors.jars.resolve import JarError, kafka_jars, spark_jars
from connectors.kafka.embedded import EmbeddedKafka
from pipelines.card import JobCard
from pipelines.job import Job
from pipelines.jvm import SIGNALS, ended_jvm, errors_in, held_signals, kill_jvm, silence_query_errors
from pipelines.logs import configure_logs
from pipelines.preflight import reach_kafka, require_ready
from pipelines.settings import JobSettings
from pipelines.status import StatusServer

__all__ = ["Host"]

_log = structlog.get_logger(__name__)

LOG_FILE = "job.log"
JVM_LOG_FILE = "jvm.log"
KAFKA_FOLDER = "kafka"
# Below the 60 s that `docker/compose.yaml` grants.
STOP_S_MAX = 40.0
STOP_BROKEN_S_MAX = 8.0
LOOK_S = 0.25


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
        self._var = var.absolute()
        self._say = on_progress
        self._kafka_port = kafka_port
        self._metrics_host = metrics_host
        self._log_to_terminal = log_to_terminal
        self._stack = contextlib.ExitStack()
        self._asked_to_stop = threading.Event()
        self._is_starting = False
        self._gave_up = False

    @property
    def log_file(self) -> Path | None:
        """Where the logs go; None: standard error."""
        return None if self._log_to_terminal else self.folder.root / LOG_FILE

    def wait(self, *, each: Callable[[], None] | None = None, every_s: float = 1.0) -> BaseException | None:
        """Wait for a signal or a failure, and tell the failure.

        Args:
            each: Called every now and then meanwhile, to show how it goes.
            every_s: How often.
        """
        due = 0.0
        while not self._asked_to_stop.wait(LOOK_S):
            if self.job.wait(0):
                return self.job.failure or Unavailable("the streaming query ended by itself")
            if self.kafka is not None and not self.kafka.is_running:
                message = f"the embedded Kafka has ended; the end of {self.kafka.log_file} may say why"
                return Unavailable(message, subject=str(self.kafka.folder))
            if each is not None and time.monotonic() >= due:
                each()
                due = time.monotonic() + every_s
        return self.job.failure

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
        ownership = Ownership(self.folder.lock)
        self._stack.callback(self._let_go, ownership)
        # Of a job that was killed. From here on nobody else can own a card in this folder.
        self.folder.card.unlink(missing_ok=True)
        configure_logs(settings.log_level, self.log_file)
        self.bootstrap_servers = settings.bootstrap_servers or self._start_kafka()
        self._step(f"connecting to Kafka at {self.bootstrap_servers}")
        reach_kafka(self.bootstrap_servers)
        self._step("starting Spark")
        self.spark = self._start_spark()
        self._step("reconciling state, log and tables")
        # It takes the ownership over and lets go of it in `stop`; letting go twice is fine.
        resolved: dict[str, Any] = {"folder": self.folder.root}
        if settings.message_topics is None:
            resolved["message_topics"] = "" if self.kafka is None else "*"
        self.job = Job(settings.model_copy(update=resolved), self.bootstrap_servers, self.spark, ownership)
        self._stack.callback(self._stop_job)
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
        with held_signals(), errors_in(None if self._log_to_terminal else self.folder.root / JVM_LOG_FILE):
            session = build_session("popstream", jars, driver_memory=self.settings.driver_memory, conf=conf)
            if is_ours:
                self._stack.callback(_ended, "spark", session.stop)
        silence_query_errors()
        return session

    def _stop_job(self) -> None:
        """Stop the job in order, but not for ever: Spark waits a minute for a Kafka that is gone.

        What is decided and not delivered by then is in the outbox, and leaves with the next start.
        """
        is_broken = self.job.failure is not None or (self.kafka is not None and not self.kafka.is_running)
        stopping = threading.Thread(target=_ended, args=("job", self.job.stop), name="stop", daemon=True)
        stopping.start()
        stopping.join(STOP_BROKEN_S_MAX if is_broken else STOP_S_MAX)
        if stopping.is_alive():
            _log.error("stop_given_up", after_s=STOP_BROKEN_S_MAX if is_broken else STOP_S_MAX)
            self._gave_up = True
            kill_jvm()
            stopping.join(STOP_BROKEN_S_MAX)

    def _let_go(self, ownership: Ownership) -> None:
        # A job that did not stop may still write: then only the end of this process lets another one take over.
        if not self._gave_up:
            ownership.release()

    def _serve_metrics(self, port: int) -> None:
        try:
            server, thread = start_http_server(port, addr=self._metrics_host, registry=self.job.metrics.registry)
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
