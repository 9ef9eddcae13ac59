"""Runs tasks in processes of their own (`worker_process`), all at once, and listens to them."""

import contextlib
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

import pipelines
from pipelines.recovery.progress import Progress
from pipelines.recovery.worker_process import Done, Failed, Message, Noted
from popstream.wire.base_errors import Corrupt, Invalid, PopstreamError, Unavailable

__all__ = ["explained", "run_processes"]

CODE = Path(pipelines.__file__).parents[1]
"""Working directory of the processes, so that they run the code of this one."""

_KINDS = {kind.__name__: kind for kind in (Corrupt, Invalid, Unavailable)}


def run_processes(
    module: str, tasks: Mapping[int, msgspec.Struct], progress: Progress, *, what: str, advice: str
) -> dict[int, msgspec.Raw]:
    """Run each task in a process of its own, all at once; return their results by number. If one fails, all end.

    Args:
        module: The module that a process runs.
        tasks: By number.
        progress: Is told how far they are.
        what: Whose processes they are, for an error.
        advice: What to do after a process was killed, or the disk was full.

    Raises:
        PopstreamError: Raised by a task, or a process was killed (Unavailable).
    """
    results: dict[int, msgspec.Raw] = {}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for number, task in tasks.items():
            process = stack.enter_context(_process(module, number, task))
            selector.register(process.output, selectors.EVENT_READ, process)
        while len(results) < len(tasks):
            for key, _ in selector.select():
                process = key.data
                line = process.output.readline()
                if not line:
                    selector.unregister(process.output)
                    if process.number not in results:
                        raise process.failure(what, advice)
                    continue
                match msgspec.json.decode(line, type=Message):
                    case Noted(doing, done, total):
                        progress.note(str(process.number), doing, done, total)
                    case Done(result):
                        results[process.number] = result
                    case Failed(kind, message, subject, details):
                        text = explained(message, advice)
                        raise _KINDS.get(kind, PopstreamError)(text, subject=subject, details=details)
    return results


def explained(message: str, advice: str) -> str:
    """Complete a message about a full disk: free space is all that is needed."""
    return f"{message}: free some space, and {advice}" if "No space left" in message else message


@dataclass(frozen=True)
class _Process:
    number: int
    output: IO[bytes]
    child: "subprocess.Popen[bytes]"
    errors: IO[bytes]

    def failure(self, what: str, advice: str) -> PopstreamError:
        """Return the error for a process that has ended without a result."""
        code = self.child.wait()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}: {said[-1]}"
        return Unavailable(f"a process of {what} {how}: {advice}")


@contextlib.contextmanager
def _process(module: str, number: int, task: msgspec.Struct) -> Iterator[_Process]:
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(  # noqa: S603 - the command is ours
            # Unbuffered: the selector sees what is in the pipe, not what Python has read ahead.
            [sys.executable, "-m", module],
            cwd=CODE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            process_group=0,
            bufsize=0,
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended already: so does its output, which is noticed
                child.stdin.write(msgspec.json.encode(task) + b"\n")
            yield _Process(number, child.stdout, child, errors)
        finally:
            child.kill()  # what it has done is stored
