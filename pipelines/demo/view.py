"""The progress of the demo: a table on a terminal, else a line every few seconds."""

import sys
import time
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipelines.control.messages import Status

__all__ = ["View", "as_line", "as_table"]

LINE_EVERY_S = 5.0
QUEUES_SHOWN = 16


def as_line(status: Status) -> str:
    """Return the progress as one line."""
    numbers = "  ".join(f"{name} {value}" for name, value in _numbers(status).items())
    return f"{numbers}  lag: {', '.join(f'{group} {sum(lags.values())}' for group, lags in _lags(status).items())}"


def as_table(status: Status) -> Group:
    """Return the numbers, and the lag of each lane below them."""
    numbers = Table.grid(padding=(0, 3))
    for name in _numbers(status):
        numbers.add_column(name, justify="right")
    numbers.add_row(*(Text(name, style="dim") for name in _numbers(status)))
    numbers.add_row(*_numbers(status).values())
    lanes = Table(title="commit lag, by lane", title_justify="left")
    lanes.add_column("group")
    shown = [queue.queue_id for queue in status.queues[:QUEUES_SHOWN]]
    for queue_id in shown:
        lanes.add_column(str(queue_id), justify="right")
    for group, lags in _lags(status).items():
        cells = [lags.get(queue_id, 0) for queue_id in shown]
        lanes.add_row(group, *(Text(str(lag), style="" if lag else "green") for lag in cells))
    return Group(numbers, lanes)


def _numbers(status: Status) -> dict[str, str]:
    lanes = [lane for queue in status.queues for lane in queue.lanes]
    totals = status.totals
    return {
        "seconds": f"{status.up_s or 0:.0f}",
        "ops/s": f"{status.operations_per_s or 0:.0f}",
        "sent": str(sum(queue.commit_position for queue in status.queues)),
        "in flight": str(sum(lane.leased for lane in lanes)),
        "dead letters": str(sum(lane.dead_lettered for lane in lanes)),
        "refused": str(totals.refused if totals else 0),
        "rejected": str(totals.rejected if totals else 0),
        "batch ms": f"{sum(totals.last_batch_ms.values()) if totals else 0:.0f}",
    }


def _lags(status: Status) -> dict[str, dict[int, int]]:
    """Return, by group and queue, how many messages are written and not done."""
    lags: dict[str, dict[int, int]] = {}
    for queue in status.queues:
        for lane in queue.lanes:
            lags.setdefault(lane.group, {})[queue.queue_id] = lane.lag
    return lags


class View:
    """Shows progress, from entry to exit; on standard error when standard output is for JSON."""

    def __init__(self, *, json_output: bool) -> None:
        self._console = Console(stderr=json_output, highlight=False)
        self._live: Live | None = None
        self._last_line_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, text: str) -> None:
        """Print what is being done now."""
        self.close()
        self._console.print(f"  {text}", markup=False)

    def show(self, status: Status) -> None:
        """Show the progress; where each is a line of its own, only every few seconds."""
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(as_table(status), refresh=True)
        elif time.monotonic() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            self._console.print(as_line(status), markup=False, soft_wrap=True)
            sys.stdout.flush()

    def close(self) -> None:
        """Leave the table as it is, and continue below it."""
        if self._live is not None:
            self._live.stop()
            self._live = None
