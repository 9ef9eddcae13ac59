"""Processes below a process, from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from pathlib import Path

__all__ = ["command_line", "descendants", "kill_tree"]


def descendants(pid: int) -> list[int]:
    """Return the process ids of the children of a process, and of theirs, parents first."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # A process may end meanwhile.
            with contextlib.suppress(OSError):
                # The name, in parentheses, may have any characters; after it come state and parent.
                _, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                children[int(parent)].append(int(entry.name))
    found = [pid]
    for each in found:
        found += sorted(children[each])
    return found[1:]


def command_line(pid: int) -> list[str]:
    """Return the command line of a process; nothing if it has ended."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in line.split(b"\0") if word]


def kill_tree(pid: int) -> None:
    """Kill a process and all below it by SIGKILL, like the loss of a machine. Does nothing if it has ended."""
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
