"""A real Kafka broker of our own: one KRaft node from the jars in `var/jars/kafka`, for demo, tests and benchmarks.

```
<folder>/cluster.id            the cluster, made once
<folder>/data/                 what Kafka stores; complete as soon as it exists (formatted beside it, then renamed)
<folder>/server.properties     written at every start
<folder>/kafka.log, .log.1     what the broker says: warnings and worse, at most 2 x 4 MiB
<folder>/lock                  held (flock) for as long as a broker runs here
<folder>/tmp/                  Java's temporary files, so that a killed broker leaves none elsewhere
```

The broker listens on 127.0.0.1 only, without authentication. It never outlives the process that started it: `keeper`
says how.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, cast

from connectors.jars.resolve import JarError, java, kafka_jars
from connectors.kafka import watchdog
from connectors.kafka.loopback import HOST, free_port, is_ready, require_free
from popstream.wire.failures import Corrupt, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

__all__ = ["EmbeddedKafka"]

NODE_ID = 1
MIB = 1024 * 1024
LOG_BYTES_MAX = 4 * MIB
LOG_LINES_SHOWN = 25
STOP_GRACE_S = 20.0
KILL_GRACE_S = 10.0
FOLDER_WAIT_S = 8.0
POLL_S = 0.05
STARTS_MAX = 4
PORT_TAKEN_SIGN = "Address already in use"

# Everything Kafka keeps in several copies, in one; and internal topics small enough that a start is quick.
ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": str(NODE_ID),
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # Nobody else will join: the first consumer of a group need not wait 3 s for a second one.
    "group.initial.rebalance.delay.ms": "0",
    # The ops topic takes record batches of 16 MiB; every topic may.
    "message.max.bytes": str(16 * MIB),
    "replica.fetch.max.bytes": str(16 * MIB),
    # Its default of 128 MiB is a quarter of our heap.
    "log.cleaner.dedupe.buffer.size": str(8 * MIB),
    # After a SIGKILL the next broker may register only when the session of the dead one is over; the default is 9 s.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
}


class EmbeddedKafka:
    """One broker, from `start` to `stop`; as a context manager, from entry to exit.

    It ends with this process however that ends: return, exception, Ctrl-C, SIGTERM, SIGKILL. The folder keeps topics
    and records between runs and is never removed here. Not for several threads at once.

    Args:
        folder: Where it keeps everything; made when missing, used again when there.
        jars: Kafka's jars; by default those of `var/jars/kafka` below the working directory.
        port: Port for clients; 0 takes a free one at the first start and keeps it for restarts.
        controller_port: Port the broker uses to talk to itself; 0 likewise.
        heap_mb: Java heap in MiB. Resident memory is about 150 MiB more.
        settings: Broker settings on top of ours, as in server.properties.
        start_timeout_s: Seconds a start may take before it is given up.
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
        start_timeout_s: float = 60.0,
    ) -> None:
        """Remember the wishes; nothing is started or written."""
        self.folder = folder.resolve()
        self._jars = jars
        self._port_wanted = port
        self._controller_port_wanted = controller_port
        self._port = port
        self._controller_port = controller_port
        self._heap_mb = heap_mb
        self._settings = dict(settings or {})
        self._start_timeout_s = start_timeout_s
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients; stays the same over restarts.

        Raises:
            Unavailable: Before the first start nobody knows the port.
        """
        if not self._port:
            message = "the broker has no port before its first start"
            raise Unavailable(message, subject=str(self.folder))
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the broker's JVM.

        Raises:
            Unavailable: It does not run.
        """
        if not self.is_running:
            message = "the broker does not run"
            raise Unavailable(message, subject=str(self.folder))
        return self._pid

    @property
    def is_running(self) -> bool:
        """Whether the broker's process is there; it may still be starting or stopping."""
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def log_file(self) -> Path:
        """What the broker says: warnings and worse."""
        return self.folder / "kafka.log"

    def start(self) -> None:
        """Format the folder if it is new, start the broker, and wait until it may be given topics. About 3 s.

        Does nothing when it runs already.

        Raises:
            Invalid: A port that was asked for is taken; another broker uses the folder; Java or a jar is missing.
            Corrupt: The folder belongs to another cluster, or is only half there.
            Unavailable: The broker ended while starting, or is not ready in time; the error carries the end of its log.
        """
        if self.is_running:
            return
        attempt = 1
        while not self._start_once():
            attempt += 1
            if attempt > STARTS_MAX:
                raise self._not_started(f"lost the race for a free port {STARTS_MAX} times")
        # From now on clients know the port.
        self._port_wanted, self._controller_port_wanted = self._port, self._controller_port

    def stop(self) -> None:
        """Shut the broker down in order, at most 20 s; then by SIGKILL. Does nothing when it does not run."""
        self._end(watchdog.STOP, STOP_GRACE_S + KILL_GRACE_S)

    def kill(self) -> None:
        """End the broker by SIGKILL, as a crash does. Does nothing when it does not run."""
        self._end(watchdog.KILL, KILL_GRACE_S)

    def restart(self) -> None:
        """Stop and start: same folder, same ports, same records.

        Raises:
            Invalid: As `start`.
            Corrupt: As `start`.
            Unavailable: As `start`.
        """
        self.stop()
        self.start()

    def run_tool(
        self, main_class: str, arguments: Sequence[str], *, input_text: str = "", timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's own command line tools and give its exit code and what it printed.

        Args:
            main_class: For example `org.apache.kafka.tools.ConsoleProducer`; its jar must be among ours.
            arguments: The rest of its command line; most tools want `--bootstrap-server` with `bootstrap_servers`.
            input_text: Its standard input.
            timeout_s: Seconds until it is killed.

        Raises:
            Invalid: Java or a jar is missing.
            Unavailable: It did not end in time.
        """
        command = [*self._java(heap_mb=256), main_class, *arguments]
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
        """Stop, whatever happened inside."""
        self.stop()

    def _start_once(self) -> bool:
        """Start; False when another process was faster to take a port of our choice, so that another one may do."""
        with self._locked_folder() as lock:
            self._choose_ports()
            cluster_id = self._format()
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
        self._port, self._controller_port = self._port_wanted, self._controller_port_wanted
        if self._port_wanted:
            require_free(self._port_wanted, "port")
        if self._controller_port_wanted:
            require_free(self._controller_port_wanted, "controller_port")
        if self._port and self._port == self._controller_port:
            message = f"port and controller_port are both {self._port}; they must differ"
            raise Invalid(message, subject=f"{HOST}:{self._port}")
        self._port = self._port or free_port(but_not=self._controller_port)
        self._controller_port = self._controller_port or free_port(but_not=self._port)

    @contextlib.contextmanager
    def _locked_folder(self) -> Iterator[int]:
        """Hold the folder's lock; a child that inherits the descriptor holds it on, until it ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # A broker whose owner has just died is still shutting down, which takes about a second.
            deadline = time.monotonic() + FOLDER_WAIT_S
            while not _try_lock(lock):
                if time.monotonic() > deadline:
                    message = f"another broker runs in {self.folder}: stop it, or give this one another folder"
                    raise Invalid(message, subject=str(self.folder))
                time.sleep(POLL_S)
            yield lock
        finally:
            os.close(lock)

    def _format(self) -> str:
        """Give the cluster id; make the storage once, in a folder beside that is renamed when complete."""
        data = self.folder / "data"
        id_file = self.folder / "cluster.id"
        if data.exists():
            return _checked_cluster_id(data, id_file)
        cluster_id = _new_cluster_id()
        unfinished = self.folder / "data.formatting"
        shutil.rmtree(unfinished, ignore_errors=True)
        properties = self._write_properties(self.folder / "format.properties", unfinished)
        done = self.run_tool("kafka.tools.StorageTool", ["format", "-t", cluster_id, "-c", str(properties)])
        if done.returncode != 0:
            message = f"formatting {data} failed with exit code {done.returncode}"
            said = (done.stdout + done.stderr).splitlines()
            raise Invalid(message, subject=str(data), details=said[-LOG_LINES_SHOWN:])
        properties.unlink()
        id_file.write_text(cluster_id + "\n", encoding="ascii")
        unfinished.rename(data)
        return cluster_id

    def _write_properties(self, path: Path, data: Path) -> Path:
        listeners = f"PLAINTEXT://{HOST}:{self._port},CONTROLLER://{HOST}:{self._controller_port}"
        lines = ONE_NODE | {
            # A static voter, not `--standalone`: its address is read from here at each start, so the port may change.
            "controller.quorum.voters": f"{NODE_ID}@{HOST}:{self._controller_port}",
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self._port}",
            "log.dirs": str(data),
        }
        text = "".join(f"{name}={value}\n" for name, value in (lines | self._settings).items())
        path.write_text(text, encoding="utf-8")
        return path

    def _java(self, heap_mb: int) -> list[str]:
        """Java's command line up to the main class."""
        try:
            program = java()
            jars = self._jars if self._jars is not None else kafka_jars(Path("var"))
        except JarError as error:
            raise Invalid(str(error)) from error
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        return [
            program,
            f"-Xmx{heap_mb}m",
            "-XX:+ExitOnOutOfMemoryError",
            # No file of its own in the system's temporary folder either.
            "-XX:-UsePerfData",
            f"-XX:ErrorFile={self.folder / 'java-crash.log'}",
            f"-Djava.io.tmpdir={temporary}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
            "-cp",
            os.pathsep.join(str(jar.resolve()) for jar in jars),
        ]

    def _launch(self, lock: int) -> subprocess.Popen[bytes]:
        properties = self._write_properties(self.folder / "server.properties", self.folder / "data")
        command = [*self._java(self._heap_mb), "kafka.Kafka", str(properties)]
        with self.log_file.open("ab") as log:
            self._keeper = subprocess.Popen(  # noqa: S603 - the command is ours
                watchdog.keeper_command(self.log_file, LOG_BYTES_MAX, STOP_GRACE_S, command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[lock],
                # Ctrl-C reaches us alone: our `finally` blocks may still need the broker, and then stop it.
                start_new_session=True,
                cwd=self.folder,
            )
        # No number when the keeper could not start Java: it has ended, and the log says why.
        self._pid = int(cast("IO[bytes]", self._keeper.stdout).readline() or 0)
        return self._keeper

    def _wait_until_ready(self, running: subprocess.Popen[bytes], cluster_id: str) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not is_ready(self._port, cluster_id, timeout_s=1.0):
            code = running.poll()
            if code is not None:
                what = f"ended while starting, with exit code {code}"
                raise self._not_started(what)
            if time.monotonic() > deadline:
                what = f"was not ready within {self._start_timeout_s:g} s"
                raise self._not_started(what)
            time.sleep(POLL_S)

    def _not_started(self, what: str) -> Unavailable:
        message = f"Kafka {what}; the end of {self.log_file}:"
        return Unavailable(message, subject=str(self.folder), details=_last_lines(self.log_file, LOG_LINES_SHOWN))

    def _lost_a_port(self, log_start: int) -> bool:
        if self._port_wanted and self._controller_port_wanted:
            return False
        with self.log_file.open("rb") as log:
            log.seek(log_start)
            return PORT_TAKEN_SIGN.encode() in log.read()

    def _end(self, order: bytes, timeout_s: float) -> None:
        running, self._keeper = self._keeper, None
        if running is None:
            return
        orders, answers = cast("IO[bytes]", running.stdin), cast("IO[bytes]", running.stdout)
        # A broken pipe says that broker and keeper have ended already, which is what is wanted.
        with contextlib.suppress(BrokenPipeError):
            orders.write(order)
            orders.flush()
        try:
            running.wait(timeout_s)
        except BaseException:
            # The keeper hangs, or Ctrl-C came while waiting: its death takes the broker along.
            running.kill()
            running.wait()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                orders.close()
            answers.close()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _new_cluster_id() -> str:
    """A random id in Kafka's spelling; never with a leading minus, which the tools would take for an option."""
    while True:
        text = urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text


def _checked_cluster_id(data: Path, id_file: Path) -> str:
    """Read the cluster id, and refuse storage that is not the one this folder was made with.

    Raises:
        Corrupt: A file is missing or names another cluster.
    """
    meta = data / "meta.properties"
    try:
        found = re.search(r"^cluster\.id=(.*)$", meta.read_text(encoding="ascii"), re.MULTILINE)
        wanted = id_file.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        message = f"{data.parent} is only half of a broker's folder ({error}): restore it, or start with an empty one"
        raise Corrupt(message, subject=str(data)) from error
    if found is None or found[1] != wanted:
        other = found[1] if found else "?"
        message = f"{data} belongs to cluster {other}, its folder to {wanted}: restore the right one"
        raise Corrupt(message, subject=str(data))
    return wanted


def _last_lines(path: Path, count: int) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16_384))
        return file.read().decode("utf-8", "replace").splitlines()[-count:]
