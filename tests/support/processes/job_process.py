"""A job in a process group of its own, to be killed; `python -m tests.support.processes.job_process` is its child side.

Each line of the child's standard input names the place of a kill (`killer.py`); at the end of the input the child shuts
down.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from tests.support.processes.killer import kill_at
from tests.support.wire import has_finished

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = ["POPSTREAM", "ROOT", "JobProcess"]

ROOT = Path(__file__).parents[3]
POPSTREAM = Path(sys.executable).with_name("popstream")
FAILED = 3
SPARK_CLASS = "org.apache.spark.deploy.SparkSubmit"


class JobProcess:
    """A running child; leaving the context kills what is left of its process group.

    Args:
        servers: The Kafka to work with.
        settings: Of the job; its folder gets the child's log, too.
        failpoint: Where it is killed from its start on, as `Killer` reads it.
        until: The child shuts down as soon as the log is decided up to here, all rows are in Delta and all dead letters
            are sent.
        java_options: Of its JVM, beyond those of the job.
        before: A command, with its arguments, that starts the child.
        take_over: Take the prefix from the job that had it before, in another folder.
    """

    def __init__(
        self,
        servers: str,
        settings: Mapping[str, Any],
        *,
        failpoint: str | None = None,
        until: Mapping[int, int] | None = None,
        java_options: str = "",
        before: Sequence[str] = (),
        take_over: bool = False,
    ) -> None:
        self._jvm: psutil.Process | None = None
        environment = {**os.environ, "JAVA_TOOL_OPTIONS": java_options} if java_options else None
        orders = json.dumps(
            {
                "servers": servers,
                "settings": dict(settings),
                "failpoint": failpoint,
                "until": dict(until) if until else None,
                "take_over": take_over,
            }
        )
        self.log = Path(settings["folder"]).with_suffix(".log")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "tests.support.processes.job_process", orders],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment,
                # Python and its JVM, and nothing else, are the group that a fail-point kills.
                start_new_session=True,
            )

    def wait(self, timeout_s: float) -> int:
        """Its exit code; -9 after SIGKILL."""
        return self.process.wait(timeout_s)

    def kill_at(self, failpoint: str) -> None:
        """Let it be killed there, with hits counted from now."""
        assert self.process.stdin is not None
        self.process.stdin.write(failpoint.encode() + b"\n")
        self.process.stdin.flush()

    def wait_for_death(self, timeout_s: float) -> tuple[int, float]:
        """Its exit code, and when Python or its JVM was gone first, in seconds since the epoch."""
        first, deadline = None, time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            if first is None and self._jvm_is_gone():
                first = time.time()
            time.sleep(0.01)
        return self.process.wait(0), first or time.time()

    def _jvm_is_gone(self) -> bool:
        try:
            if self._jvm is None:
                children = psutil.Process(self.process.pid).children()
                self._jvm = next((child for child in children if SPARK_CLASS in child.cmdline()), None)
                return False
            return self._jvm.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def stop(self, timeout_s: float) -> int:
        """Ask it to stop in order, and wait."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL what is left of the process group, and wait."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def log_tail(self) -> str:
        """The end of what the child said."""
        return self.log.read_text(errors="replace")[-4000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()


def _tell(text: str) -> None:
    print(f"{datetime.now(UTC).isoformat()} {text}", file=sys.stderr, flush=True)


def _run(orders: dict[str, Any]) -> int:
    if orders["failpoint"] is not None:
        kill_at(orders["failpoint"])
    settings = JobSettings(**orders["settings"], bootstrap_servers=orders["servers"], driver_memory="600m")
    until = {int(partition): offset for partition, offset in (orders["until"] or {}).items()}
    with Host(
        settings, var=ROOT / "var", on_progress=_tell, log_to_terminal=True, take_over=orders["take_over"]
    ) as host:

        def obey() -> None:
            for line in sys.stdin:
                kill_at(line.strip())
            host.request_stop()

        def look() -> None:
            # A cold Spark on a slow machine would need longer for the rows than a stop may take.
            is_in_delta = host.job.flush.delivered_seq >= host.job.apply_ops.applied.apply_seq
            if until and is_in_delta and has_finished(host.job, until):
                host.request_stop()

        threading.Thread(target=obey, daemon=True).start()
        failure = host.wait(each=look, every_s=0.1)
    return 0 if failure is None else FAILED


if __name__ == "__main__":
    code = _run(json.loads(sys.argv[1]))
    sys.stderr.flush()
    # Spark's JVM ends with our standard input; a thread of py4j must not hold us up.
    os._exit(code)
