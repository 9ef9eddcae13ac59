"""The progress of the demo: a line for each step, and one every few seconds while messages are processed."""

import sys
import time
from typing import TextIO

from pipelines.control.messages import Status

__all__ = ["View", "as_line"]

LINE_EVERY_S = 5.0


def as_line(status: Status) -> str:
    """Return the progress as one line; the lag of a group is the number of messages that are written and not done."""
    lags: dict[str, int] = {}
    for queue in status.queues:
        for lane in queue.lanes:
            lags[lane.group] = lags.get(lane.group, 0) + lane.lag
    lanes = [lane for queue in status.queues for lane in queue.lanes]
    totals = status.totals
    numbers = {
        "ops/s": f"{status.operations_per_s or 0:.0f}",
        "sent": sum(queue.commit_position for queue in status.queues),
        "in flight": sum(lane.leased for lane in lanes),
        "dead letters": sum(lane.dead_lettered for lane in lanes),
        "refused": totals.refused if totals else 0,
        "rejected": totals.rejected if totals else 0,
        "micro-batch ms": f"{sum(totals.last_micro_batch_ms.values()) if totals else 0:.0f}",
    }
    text = "  ".join(f"{name} {value}" for name, value in numbers.items())
    return f"{status.up_s or 0:5.0f} s  {text}  lag: {', '.join(f'{group} {lag}' for group, lag in lags.items())}"


class View:
    """Prints progress; on standard error when standard output is for JSON."""

    def __init__(self, *, json_output: bool) -> None:
        self._file: TextIO = sys.stderr if json_output else sys.stdout
        self._last_line_s = 0.0

    def say(self, text: str) -> None:
        """Print the step that begins."""
        print(f"  {text}", file=self._file, flush=True)

    def show(self, line: str) -> None:
        """Print the progress, unless that was done a moment ago."""
        if time.monotonic() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            print(line, file=self._file, flush=True)
