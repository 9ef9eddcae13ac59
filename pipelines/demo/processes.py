"""The worker processes as the demo sees them: started in turn, stopped, and never left behind."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from pipelines.demo.tasks import ROLES, Task
from popstream.wire.base_errors import Unavailable

__all__ = ["WorkerProcess", "WorkerProcesses", "peak_mib"]

STOP_TIMEOUT_S = 60.0
ARMED_TIMEOUT_S = 45.0
DOOMED_FOR_S = 2.0
LOG_LINES_SHOWN = 10


class WorkerProcess:
    """A running process; its standard error goes to `log`."""

    def __init__(self, task: Task, log: Path) -> None:
        self.task = task
        self.log = log
        self.was_killed = False
        self.peak_mib = 0
        self._started_s = time.monotonic()
        self._armed_s: float | None = None
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self.process = subprocess.Popen(  # noqa: S603 - the command is ours
                [sys.executable, "-m", "pipelines.demo.demo_worker", msgspec.json.encode(task).decode()],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                # Ctrl-C is for the demo alone.
                start_new_session=True,
            )

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with an error, and not by `kill`."""
        return self.process.poll() not in {None, 0} and not self.was_killed

    @property
    def armed_for_s(self) -> float | None:
        """How long it has held the messages that it needs; None: it does not yet."""
        now_s = time.monotonic()
        if self._armed_s is None and (self.task.armed_file.exists() or now_s - self._started_s > ARMED_TIMEOUT_S):
            self._armed_s = now_s
        return None if self._armed_s is None else now_s - self._armed_s

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.was_killed = True
        self.process.kill()
        self.process.wait()

    def ask_to_stop(self) -> None:
        """End its standard input."""
        assert self.process.stdin is not None, "it was opened with a pipe"
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class WorkerProcesses:
    """All of them, from entry to exit; `step` starts them."""

    def __init__(self, tasks: Sequence[Task], logs: Path) -> None:
        self._waiting = list(tasks)
        self._logs = logs
        self.started: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.started:
            if worker.process.poll() is None:
                worker.kill()
            worker.ask_to_stop()

    @property
    def have_sent_all(self) -> bool:
        """Whether the processes that end by themselves have ended."""
        senders = [worker for worker in self.started if worker.task.role in {"sender", "intruder"}]
        return not self._waiting and all(worker.process.poll() == 0 for worker in senders)

    def step(self) -> None:
        """Start every process whose turn it is, and kill the doomed ones that hold messages.

        Raises:
            Unavailable: A process has failed; with the end of its log.
        """
        for task in [*self._waiting]:
            if all(worker is not None and worker.armed_for_s is not None for worker in self._before(task)):
                self._waiting.remove(task)
                self.started.append(WorkerProcess(task, self._logs / f"{task.name}.log"))
        for worker in self.started:
            worker.peak_mib = max(worker.peak_mib, peak_mib(worker.process.pid))
            is_due = (worker.armed_for_s or 0) > DOOMED_FOR_S
            if worker.task.role == "doomed" and is_due and not worker.was_killed:
                worker.kill()
        self._require_healthy()

    def stop(self) -> None:
        """Stop all, and wait until they have ended.

        Raises:
            Unavailable: A process does not end, or fails.
        """
        for worker in self.started:
            worker.ask_to_stop()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for worker in self.started:
            try:
                worker.process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                message = f"{worker.task.name} does not end within {STOP_TIMEOUT_S:.0f} s; its log is {worker.log}"
                raise Unavailable(message, subject=worker.task.name) from error
        self._require_healthy()

    def _before(self, task: Task) -> list[WorkerProcess | None]:
        """Return the processes of the same group whose role starts first; None: it is not started."""
        by_name = {worker.task.name: worker for worker in self.started}
        own = ROLES.index(task.role)
        others = [*self._waiting, *(worker.task for worker in self.started)]
        return [by_name.get(t.name) for t in others if t.group == task.group and ROLES.index(t.role) < own]

    def _require_healthy(self) -> None:
        for worker in self.started:
            if worker.has_failed:
                code = worker.process.returncode
                message = f"{worker.task.name} has ended with exit code {code}; its log is {worker.log}:"
                lines = worker.log.read_text(encoding="utf-8", errors="replace").splitlines()
                raise Unavailable(message, subject=worker.task.name, details=lines[-LOG_LINES_SHOWN:])


def peak_mib(pid: int) -> int:
    """Return the most memory that a process had resident, in MiB; 0 where the system has no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:")), 0)
