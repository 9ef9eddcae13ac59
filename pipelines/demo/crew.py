"""The processes of the demo: started, told when to begin and when to end, and never left behind."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from pipelines.demo.orders import GO, STOP, Note, Orders
from popstream.wire.failures import Unavailable

__all__ = ["Crew", "CrewMember"]

STOP_TIMEOUT_S = 60.0
LINES_SHOWN = 10


class CrewMember:
    """One process; notes are read in a thread of its own.

    Args:
        orders: What it is told.
        log: File that gets what it writes to standard error.
    """

    def __init__(self, orders: Orders, log: Path) -> None:
        self.orders = orders
        self.log = log
        self.note = Note(state="working")
        self.was_killed = False
        self._seen: set[str] = set()
        self._changed = threading.Condition()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self.process = subprocess.Popen(  # noqa: S603 - the command is ours
                [sys.executable, "-m", "pipelines.demo.worker", msgspec.json.encode(orders).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Ctrl-C is for the demo alone.
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"notes-{orders.name}", daemon=True)
        self._reader.start()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended as it should not."""
        code = self.process.poll()
        return code is not None and code != 0 and not self.was_killed

    def has_been(self, state: str) -> bool:
        """Whether a note has told this state."""
        with self._changed:
            return state in self._seen

    def tell(self, line: bytes) -> None:
        """Send an order; to one that has ended there is nothing to say."""
        assert self.process.stdin is not None, "it was opened with a pipe"
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, as a crash does."""
        self.was_killed = True
        self.process.kill()
        self.process.wait()

    def wait(self, timeout_s: float) -> None:
        """Wait for its end.

        Raises:
            Unavailable: It goes on.
        """
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            message = f"{self.orders.name} does not end within {timeout_s:.0f} s; its log is {self.log}"
            raise Unavailable(message, subject=self.orders.name) from error
        self._reader.join()

    def release(self) -> None:
        """Make sure that it is gone."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None, "it was opened with a pipe"
        for line in iter(self.process.stdout.readline, b""):
            with self._changed, contextlib.suppress(msgspec.DecodeError):
                self.note = msgspec.json.decode(line, type=Note)
                self._seen.add(self.note.state)


class Crew:
    """All of them, from entry to exit."""

    def __init__(self, orders: Sequence[Orders], logs: Path) -> None:
        self._orders = orders
        self._logs = logs
        self.members: list[CrewMember] = []

    def __enter__(self) -> Self:
        try:
            for orders in self._orders:
                self.members.append(CrewMember(orders, self._logs / f"{orders.name}.log"))
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def of(self, *roles: str, group: str | None = None) -> list[CrewMember]:
        """Those with one of these roles (in a group)."""
        return [
            member
            for member in self.members
            if member.orders.role in roles and (group is None or member.orders.group == group)
        ]

    def require_well(self) -> None:
        """Raise when one has ended as it should not.

        Raises:
            Unavailable: With the end of its log.
        """
        for member in self.members:
            if member.has_failed:
                code = member.process.returncode
                message = f"{member.orders.name} has ended with exit code {code}; its log is {member.log}:"
                lines = member.log.read_text(encoding="utf-8", errors="replace").splitlines()
                raise Unavailable(message, subject=member.orders.name, details=lines[-LINES_SHOWN:])

    def stop(self) -> None:
        """Tell all to end, and wait until they have.

        Raises:
            Unavailable: One does not, or ends as it should not.
        """
        for member in self.members:
            member.tell(STOP)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for member in self.members:
            member.wait(max(0.1, deadline - time.monotonic()))
        self.require_well()

    def _release(self) -> None:
        for member in self.members:
            member.release()


def go(members: Sequence[CrewMember]) -> None:
    """Let them begin."""
    for member in members:
        member.tell(GO)
