"""The folder of an embedded broker: its lock, storage and configuration.

```
<folder>/cluster.id            the cluster id, generated once
<folder>/data/                 Kafka's storage; complete as soon as it exists (formatted beside it, then renamed)
<folder>/server.properties     written at every start
<folder>/admin.properties      of a secured broker: how to connect as the user who may do everything
<folder>/kafka.log, .log.1     the broker's log: warnings and errors, at most 2 x 4 MiB
<folder>/lock                  locked (flock) while a broker runs here
<folder>/tmp/                  Java's temporary files, so that a killed broker leaves none elsewhere
```
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
import uuid
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, NamedTuple

from connectors.local_servers.loopback import HOST
from popstream.wire.base_errors import Corrupt, Invalid

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from connectors.kafka.broker_security import BrokerSecurity

__all__ = ["LOG_LINES_SHOWN", "POLL_S", "BrokerFolder", "Ports"]

NODE_ID = 1
MIB = 1024 * 1024
LOCK_WAIT_S = 8.0
LOG_LINES_SHOWN = 25
LOG_TAIL_BYTES = 16_384
POLL_S = 0.05
LISTENER = "CLIENTS"

# One copy of everything, and internal topics small enough for a quick start.
ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": str(NODE_ID),
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": f"{LISTENER}:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": LISTENER,
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
    # Kafka would wait 3 s for a second consumer of a group.
    "group.initial.rebalance.delay.ms": "0",
    # The ops topic accepts record batches of 16 MiB.
    "message.max.bytes": str(16 * MIB),
    "replica.fetch.max.bytes": str(16 * MIB),
    # Its default of 128 MiB is a quarter of the heap.
    "log.cleaner.dedupe.buffer.size": str(8 * MIB),
    # After a SIGKILL the next broker can register only when the old session has expired; the default is 9 s.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
}


class Ports(NamedTuple):
    """Ports of 127.0.0.1; 0: not chosen yet."""

    client: int
    controller: int


class BrokerFolder:
    """Paths and files of one broker.

    Args:
        root: The folder.
        settings: Broker settings that override the defaults here, as in server.properties.
        security: How clients connect; None: without encryption and authentication.
    """

    def __init__(self, root: Path, settings: Mapping[str, str], security: BrokerSecurity | None = None) -> None:
        self.root = root
        self._settings = settings
        self._security = security

    @property
    def log_file(self) -> Path:
        """The broker's log: warnings and errors."""
        return self.root / "kafka.log"

    @property
    def admin_file(self) -> Path | None:
        """How to connect as the user who may do everything; None: without encryption and authentication."""
        return self.root / "admin.properties" if self._security is not None else None

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the folder's lock. A child process that inherits the descriptor keeps the lock until it ends.

        Raises:
            Invalid: Another broker runs in the folder.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # A broker whose owner has just died is still shutting down, which takes about a second.
            deadline = time.monotonic() + LOCK_WAIT_S
            while not _try_lock(lock):
                if time.monotonic() > deadline:
                    message = f"another broker runs in {self.root}: stop it, or give this one another folder"
                    raise Invalid(message, subject=str(self.root))
                time.sleep(POLL_S)
            yield lock
        finally:
            os.close(lock)

    def format(self, ports: Ports, run_tool: Callable[[str, Sequence[str]], subprocess.CompletedProcess[str]]) -> str:
        """Format the storage if it is missing, and return the cluster id.

        Raises:
            Invalid: Kafka's tool failed.
            Corrupt: The folder is incomplete or belongs to another cluster.
        """
        data = self.root / "data"
        id_file = self.root / "cluster.id"
        if data.exists():
            return _checked_cluster_id(data, id_file)
        cluster_id = _new_cluster_id()
        unfinished = self.root / "data.formatting"
        shutil.rmtree(unfinished, ignore_errors=True)
        properties = self._write_properties(self.root / "format.properties", unfinished, ports)
        users = self._security.format_arguments(self.admin_file) if self._security and self.admin_file else []
        done = run_tool("kafka.tools.StorageTool", ["format", "-t", cluster_id, "-c", str(properties), *users])
        if done.returncode != 0:
            message = f"formatting {data} failed with exit code {done.returncode}"
            output = (done.stdout + done.stderr).splitlines()
            raise Invalid(message, subject=str(data), details=output[-LOG_LINES_SHOWN:])
        properties.unlink()
        id_file.write_text(cluster_id + "\n", encoding="ascii")
        unfinished.rename(data)
        return cluster_id

    def write_server_properties(self, ports: Ports) -> Path:
        """Write the configuration of the broker, and return its path."""
        return self._write_properties(self.root / "server.properties", self.root / "data", ports)

    def last_log_lines(self, count: int) -> list[str]:
        """Return the last lines of the log."""
        with self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]

    def _write_properties(self, path: Path, data: Path, ports: Ports) -> Path:
        lines = ONE_NODE | {
            # A static voter, not `--standalone`: its address is read from here at each start, so the port may change.
            "controller.quorum.voters": f"{NODE_ID}@{HOST}:{ports.controller}",
            "listeners": f"{LISTENER}://{HOST}:{ports.client},CONTROLLER://{HOST}:{ports.controller}",
            "advertised.listeners": f"{LISTENER}://{HOST}:{ports.client}",
            "log.dirs": str(data),
        }
        if self._security is not None and self.admin_file is not None:
            self._security.write_admin(self.admin_file)
            lines |= self._security.server_settings(LISTENER, self.admin_file)
        text = "".join(f"{name}={value}\n" for name, value in (lines | dict(self._settings)).items())
        path.unlink(missing_ok=True)  # it may have been readable for all, and gets passwords
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return path


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _new_cluster_id() -> str:
    """Return a random id in Kafka's format, without a leading hyphen, which the tools would take for an option."""
    while True:
        text = urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text


def _checked_cluster_id(data: Path, id_file: Path) -> str:
    """Return the cluster id, and refuse storage of another cluster.

    Raises:
        Corrupt: A file is missing or names another cluster.
    """
    meta = data / "meta.properties"
    try:
        found = re.search(r"^cluster\.id=(.*)$", meta.read_text(encoding="ascii"), re.MULTILINE)
        wanted = id_file.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        message = f"{data.parent} is an incomplete folder of a broker ({error}): restore it, or start with an empty one"
        raise Corrupt(message, subject=str(data)) from error
    if found is None or found[1] != wanted:
        other = found[1] if found else "?"
        message = f"{data} belongs to cluster {other}, its folder to {wanted}: restore the right one"
        raise Corrupt(message, subject=str(data))
    return wanted
