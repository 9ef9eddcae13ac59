"""An embedded Kafka broker: one KRaft node from the jars in `var/jars/kafka`, for trials, tests and benchmarks.

The broker listens on 127.0.0.1 only, without authentication unless it gets a `BrokerSecurity`. It never outlives the
process that started it: see `connectors.local_servers.watchdog`. `broker_folder` draws its folder.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from connectors.jars.class_archive import flags_to_use
from connectors.jars.resolve import JarError, java, kafka_jars
from connectors.kafka.broker_folder import LOG_LINES_SHOWN, POLL_S, BrokerFolder, Ports
from connectors.kafka.readiness import is_ready
from connectors.local_servers.loopback import HOST, free_port, require_free
from connectors.local_servers.watched_process import WatchedProcess
from popstream.kafka_connection import KafkaConnection
from popstream.reach_kafka import reach_kafka
from popstream.wire.base_errors import Invalid, PopstreamError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from connectors.kafka.broker_security import BrokerSecurity

__all__ = ["SHORT_LIVED_JVM", "EmbeddedKafka"]

LOG_BYTES_MAX = 4 * 1024 * 1024
STOP_GRACE_S = 20.0
STARTS_MAX = 4
PORT_TAKEN_SIGN = "Address already in use"
SHORT_LIVED_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Flags for a JVM that ends within a minute or two: its start costs half of the CPU time."""


class EmbeddedKafka:
    """One broker, from `start` to `stop`; as a context manager, from entry to exit. Not thread-safe.

    The broker ends with this process, however that ends: return, exception, Ctrl-C, SIGTERM, SIGKILL. The folder keeps
    topics and records between runs; nothing here removes it.

    Args:
        folder: Folder of the broker; created when it is missing.
        jars: Kafka's jars; by default those of `var/jars/kafka` below the working directory.
        port: Port for clients; 0: a free one, which restarts keep.
        controller_port: Port for the broker's controller; 0: a free one, which restarts keep.
        heap_mb: Java heap in MiB. Resident memory is about 150 MiB more.
        settings: Broker settings that override the defaults here, as in server.properties.
        security: Encryption, authentication and ACLs; None: none of them.
        java_options: Flags of the broker's JVM; `SHORT_LIVED_JVM` for tests.
        start_timeout_s: Seconds that a start may take.
        stop_grace_s: Seconds that a stop may take before the broker is killed.
    """

    def __init__(
        self,
        folder: Path = Path("var/kafka"),
        *,
        jars: Sequence[Path] | None = None,
        port: int = 0,
        controller_port: int = 0,
        heap_mb: int = 512,
        settings: Mapping[str, str] | None = None,
        security: BrokerSecurity | None = None,
        java_options: Sequence[str] = (),
        start_timeout_s: float = 60.0,
        stop_grace_s: float = STOP_GRACE_S,
    ) -> None:
        """Store the arguments; nothing is started or written."""
        self._files = BrokerFolder(folder.resolve(), dict(settings or {}), security)
        self._jars = jars
        self._requested = Ports(port, controller_port)
        self._ports = self._requested
        self._heap_mb = heap_mb
        self._java_options = [*java_options, *(security.java_options if security is not None else ())]
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self._process: WatchedProcess | None = None

    @property
    def folder(self) -> Path:
        """The folder of the broker."""
        return self._files.root

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients; restarts keep it.

        Raises:
            Unavailable: The broker has no port before its first start.
        """
        if not self._ports.client:
            message = "the broker has no port before its first start"
            raise Unavailable(message, subject=str(self.folder))
        return f"{HOST}:{self._ports.client}"

    @property
    def connection(self) -> KafkaConnection:
        """How to connect to it; if it is secured, as the user `admin`, who may do everything.

        Raises:
            Unavailable: The broker has no port before its first start.
        """
        return KafkaConnection(self.bootstrap_servers, str(self._files.admin_file or ""))

    @property
    def pid(self) -> int:
        """Process id of the broker's JVM.

        Raises:
            Unavailable: The broker does not run.
        """
        if self._process is None or self._process.exit_code is not None:
            message = "the broker does not run"
            raise Unavailable(message, subject=str(self.folder))
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the broker's process exists; it may be starting or stopping."""
        return self._process is not None and self._process.exit_code is None

    @property
    def log_file(self) -> Path:
        """The broker's log: warnings and errors."""
        return self._files.log_file

    def start(self) -> None:
        """Format the folder if it is new, start the broker, and wait until topics can be created. About 3 s.

        Does nothing if the broker runs already.

        Raises:
            Invalid: A requested port is taken, another broker uses the folder, or Java or a jar is missing.
            Corrupt: The folder is incomplete or belongs to another cluster.
            Unavailable: The broker ended while starting, or was not ready in time. The error has the end of its log.
        """
        if self.is_running:
            return
        attempt = 1
        while not self._start_once():
            attempt += 1
            if attempt > STARTS_MAX:
                raise self._not_started(f"lost the race for a free port {STARTS_MAX} times")
        self._requested = self._ports  # clients know the port: restarts keep it

    def stop(self) -> None:
        """Shut the broker down; after `stop_grace_s` kill it. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def kill(self) -> None:
        """Kill the broker by SIGKILL, like a crash. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def restart(self) -> None:
        """Stop and start with the same folder and ports.

        Raises:
            Invalid: As in `start`.
            Corrupt: As in `start`.
            Unavailable: As in `start`.
        """
        self.stop()
        self.start()

    def run_tool(
        self,
        main_class: str,
        arguments: Sequence[str],
        *,
        input_text: str = "",
        timeout_s: float = 60.0,
        java_options: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's command line tools, and return its exit code and output.

        Args:
            main_class: For example `org.apache.kafka.tools.ConsoleProducer`; its jar must be among `jars`.
            arguments: Its arguments; most tools need `--bootstrap-server` with `bootstrap_servers`, and for a secured
                broker `--command-config` with the file of `connection`.
            input_text: Its standard input.
            timeout_s: Seconds until it is killed.
            java_options: More flags of the tool's JVM.

        Raises:
            Invalid: Java or a jar is missing.
            Unavailable: The tool did not end in time.
        """
        command = [*self._java(256, [*SHORT_LIVED_JVM, *java_options]), main_class, *arguments]
        try:
            return subprocess.run(  # noqa: S603 - the command is ours
                command, input=input_text, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            message = f"{main_class} did not end within {timeout_s:g} s"
            raise Unavailable(message, subject=main_class) from error

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def _start_once(self) -> bool:
        """Start. False: another process took a port that was chosen here, so another port may work."""
        with self._files.locked() as lock:
            self._choose_ports()
            cluster_id = self._files.format(self._ports, self.run_tool)
            log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
            running = self._launch(lock)
        try:
            self._wait_until_ready(running, cluster_id)
        except BaseException as error:
            self.kill()
            if isinstance(error, Unavailable) and self._lost_a_port(log_start):
                return False
            raise
        return True

    def _choose_ports(self) -> None:
        port, controller_port = self._requested
        if port:
            require_free(port, "port")
        if controller_port:
            require_free(controller_port, "controller_port")
        if port and port == controller_port:
            message = f"port and controller_port are both {port}; they must differ"
            raise Invalid(message, subject=f"{HOST}:{port}")
        port = port or free_port(but_not=controller_port)
        self._ports = Ports(port, controller_port or free_port(but_not=port))

    def _java(self, heap_mb: int, options: Sequence[str]) -> list[str]:
        """Return Java's command line up to the main class."""
        try:
            program = java()
            jars = self._jars if self._jars is not None else kafka_jars(Path("var"))
            shared_classes = flags_to_use("kafka", jars)
        except JarError as error:
            raise Invalid(str(error)) from error
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        return [
            program,
            f"-Xmx{heap_mb}m",
            *shared_classes,
            *options,
            "-XX:+ExitOnOutOfMemoryError",
            # It would create a file in the system's temporary folder.
            "-XX:-UsePerfData",
            f"-XX:ErrorFile={self.folder / 'java-crash.log'}",
            f"-Djava.io.tmpdir={temporary}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
            "-cp",
            os.pathsep.join(str(jar.resolve()) for jar in jars),
        ]

    def _launch(self, lock: int) -> WatchedProcess:
        properties = self._files.write_server_properties(self._ports)
        self._process = WatchedProcess(
            [*self._java(self._heap_mb, self._java_options), "kafka.Kafka", str(properties)],
            self.log_file,
            log_bytes_max=LOG_BYTES_MAX,
            grace_s=self._stop_grace_s,
            cwd=self.folder,
            pass_fds=[lock],
        )
        return self._process

    def _wait_until_ready(self, running: WatchedProcess, cluster_id: str) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not self._is_ready(cluster_id):
            code = running.exit_code
            if code is not None:
                what = f"ended while starting, with exit code {code}"
                raise self._not_started(what)
            if time.monotonic() > deadline:
                what = f"was not ready within {self._start_timeout_s:g} s"
                raise self._not_started(what)
            time.sleep(POLL_S)

    def _is_ready(self, cluster_id: str) -> bool:
        if self._files.admin_file is None:
            return is_ready(self._ports.client, cluster_id, timeout_s=1.0)
        try:
            reach_kafka(self.connection, timeout_s=0)
        except PopstreamError:  # Invalid, too: another process may listen there, or it does not know its users yet
            return False
        return True

    def _not_started(self, what: str) -> Unavailable:
        message = f"Kafka {what}; the end of {self.log_file}:"
        return Unavailable(message, subject=str(self.folder), details=self._files.last_log_lines(LOG_LINES_SHOWN))

    def _lost_a_port(self, log_start: int) -> bool:
        if all(self._requested):
            return False
        with self.log_file.open("rb") as log:
            log.seek(log_start)
            return PORT_TAKEN_SIGN.encode() in log.read()
