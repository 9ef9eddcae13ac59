"""A standalone Spark cluster on 127.0.0.1, from the Spark inside the Python package: for trials, tests and benchmarks.

```
this process ── watchdog ── master            <folder>/master.log
             ── watchdog ── worker 0          <folder>/worker-0.log
                            └── executor      <folder>/worker-0/app-<time>-<number>/<executor>/stderr
                                └── python3
             ── watchdog ── worker 1 ...
```

Master and workers get no variables of this process but PATH, HOME and JAVA_HOME, so that executors find nothing of its
Python: what a job needs there, it brings along. They end with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Final, Self

from connectors.jars.resolve import JarError, java
from connectors.local_servers.loopback import HOST, free_port
from connectors.local_servers.process_tree import command_line, descendants
from connectors.local_servers.watched_process import WatchedProcess
from connectors.malloc_arenas import ARENAS_ENVIRONMENT
from connectors.spark_cluster.spark_home import packaged_spark_home
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

__all__ = ["StandaloneCluster"]

LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_LINES_SHOWN = 25
STOP_GRACE_S = 10.0
POLL_S = 0.1
EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
PASSED_ON: Final = ("PATH", "HOME", "JAVA_HOME")

_JVM_FLAGS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    # Or a taken port would move the server to another one.
    "-Dspark.port.maxRetries=0",
    # It would listen on a fixed port.
    "-Dspark.master.rest.enabled=false",
)


class StandaloneCluster:
    """A master and workers; from `start` to `stop`, as a context manager from entry to exit. Not thread-safe.

    Args:
        folder: Folder for logs and for the files of executors; created when it is missing, and kept.
        workers: Number of workers.
        cores: Cores that each worker offers.
        memory_mb: Memory that each worker offers to executors, in MiB.
        environment: More variables of master, workers and executors.
        start_timeout_s: Seconds that a start may take.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory_mb: int = 2048,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        """Store the arguments; nothing is started or written."""
        self.folder = folder.resolve()
        self._count = workers
        self._cores = cores
        self._memory_mb = memory_mb
        self._given = dict(environment or {})
        self._start_timeout_s = start_timeout_s
        self._ports: tuple[int, int] | None = None
        self._master: WatchedProcess | None = None
        self._workers: dict[int, WatchedProcess] = {}

    @property
    def master_url(self) -> str:
        """`spark://host:port`; restarts keep it.

        Raises:
            Unavailable: The cluster has not been started.
        """
        if self._ports is None:
            message = "the cluster has no port before its first start"
            raise Unavailable(message, subject=str(self.folder))
        return f"spark://{HOST}:{self._ports[0]}"

    def start(self) -> None:
        """Start master and workers, and wait until all workers have registered. About 5 s.

        Raises:
            Invalid: Java or PySpark is missing.
            Unavailable: One of them ended while starting, or was not ready in time; with the end of its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._ports is None:
            port = free_port()
            self._ports = port, free_port(but_not=port)
        port, ui_port = self._ports
        arguments = ["--host", HOST, "--port", str(port), "--webui-port", str(ui_port)]
        try:
            self._master = self._launch("master", "org.apache.spark.deploy.master.Master", arguments)
            # Workers ask for their master a few times, with growing pauses: they would find it late.
            self._wait_for_workers(0)
            for number in range(self._count):
                self._launch_worker(number)
            self._wait_for_workers(self._count)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop workers with their executors, then the master. Does nothing if the cluster does not run."""
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.stop()
        master, self._master = self._master, None
        if master is not None:
            master.stop()

    def worker_pid(self, number: int) -> int:
        """Return the process id of a worker; the first has number 0.

        Raises:
            Unavailable: It does not run.
        """
        worker = self._workers.get(number)
        if worker is None or worker.exit_code is not None:
            message = f"worker {number} does not run"
            raise Unavailable(message, subject=str(self.folder))
        return worker.pid

    def kill_worker(self, number: int) -> None:
        """Kill a worker by SIGKILL; its executors notice and end by themselves.

        Raises:
            Unavailable: It does not run.
        """
        self.worker_pid(number)
        self._workers.pop(number).kill()

    def start_worker(self, number: int) -> None:
        """Start a worker again that was killed, and wait until it has registered.

        Raises:
            Invalid: It runs.
            Unavailable: It did not register in time; with the end of its log.
        """
        if number in self._workers:
            message = f"worker {number} runs already"
            raise Invalid(message, subject=str(self.folder))
        self._launch_worker(number)
        self._wait_for_workers(len(self._workers))

    def executor_pids(self) -> list[int]:
        """Return the process ids of all executors."""
        below = [pid for worker in self._workers.values() for pid in descendants(worker.pid)]
        return [pid for pid in below if EXECUTOR_CLASS in command_line(pid)]

    def kill_executor(self, pid: int) -> None:
        """Kill an executor of `executor_pids` by SIGKILL; the master has another one started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def _launch_worker(self, number: int) -> None:
        work = self.folder / f"worker-{number}"
        arguments = [
            *("--host", HOST, "--cores", str(self._cores), "--memory", f"{self._memory_mb}m"),
            # Any free port: nobody has to know it.
            *("--port", "0", "--webui-port", "0", "--work-dir", str(work), self.master_url),
        ]
        self._workers[number] = self._launch(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", arguments)

    def _launch(self, name: str, main_class: str, arguments: list[str]) -> WatchedProcess:
        home = packaged_spark_home()
        try:
            command = [java(), *_JVM_FLAGS, "-cp", str(home / "jars" / "*"), main_class, *arguments]
        except JarError as error:
            raise Invalid(str(error)) from error
        return WatchedProcess(
            command,
            self.folder / f"{name}.log",
            log_bytes_max=LOG_BYTES_MAX,
            grace_s=STOP_GRACE_S,
            cwd=self.folder,
            environment={
                **{variable: os.environ[variable] for variable in PASSED_ON if variable in os.environ},
                # Executors are started by Spark's own launcher, which asks for the first two.
                "SPARK_HOME": str(home),
                "SPARK_SCALA_VERSION": "2.13",
                "SPARK_CONF_DIR": str(self.folder),
                "SPARK_LOCAL_IP": HOST,
                "SPARK_LOCAL_HOSTNAME": HOST,
                **ARENAS_ENVIRONMENT,
                **self._given,
            },
        )

    def _wait_for_workers(self, count: int) -> None:
        deadline_s = time.monotonic() + self._start_timeout_s
        while (alive := self._alive_workers()) is None or alive < count:
            named = {"master": self._master, **{f"worker-{number}": each for number, each in self._workers.items()}}
            for name, process in named.items():
                if process is not None and process.exit_code is not None:
                    raise self._not_started(name, f"ended while starting, with exit code {process.exit_code}")
            if time.monotonic() > deadline_s:
                late = "master" if alive is None else f"worker-{max(self._workers, default=0)}"
                raise self._not_started(late, f"was not ready within {self._start_timeout_s:g} s")
            time.sleep(POLL_S)

    def _alive_workers(self) -> int | None:
        """Return how many workers the master knows; None while it does not answer."""
        assert self._ports is not None, "it has been started"
        connection = http.client.HTTPConnection(HOST, self._ports[1], timeout=5)
        try:
            connection.request("GET", "/json/")
            answer = json.load(connection.getresponse())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return len([worker for worker in answer["workers"] if worker["state"] == "ALIVE"])

    def _not_started(self, name: str, what: str) -> Unavailable:
        log = self.folder / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return Unavailable(f"Spark's {name} {what}; the end of {log}:", subject=str(self.folder), details=lines)
