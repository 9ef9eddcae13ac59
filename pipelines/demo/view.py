"""What one sees while the demo runs: a table on a terminal, else a line every few seconds."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["Sight", "View", "as_line", "as_table"]

LINE_EVERY_S = 5.0
QUEUES_SHOWN = 16


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """How it stands now. `lags` is by group: for each queue the messages that are written and not done."""

    seconds: float
    ops_per_s: float
    sent: int
    messages: int
    in_flight: int
    redelivered: int
    refused: int
    rejected: int
    batch_ms: float
    delta_lag: int
    lags: Mapping[str, list[int]]


def as_line(sight: Sight) -> str:
    """All of it in one line."""
    lags = ", ".join(f"{group} {sum(lags)}" for group, lags in sight.lags.items())
    return (
        f"{sight.seconds:5.0f} s  {sight.ops_per_s:6.0f} ops/s  sent {sight.sent}/{sight.messages}"
        f"  in flight {sight.in_flight}  redelivered {sight.redelivered}  refused {sight.refused}"
        f"  rejected {sight.rejected}  batch {sight.batch_ms:.0f} ms  lag: {lags}"
    )


def as_table(sight: Sight) -> Group:
    """The numbers above, the lag of each lane below."""
    numbers = Table.grid(padding=(0, 3))
    for _ in range(8):
        numbers.add_column(justify="right")
    titles = ("seconds", "ops/s", "sent", "in flight", "redelivered", "refused", "rejected", "batch ms")
    numbers.add_row(*(Text(title, style="dim") for title in titles))
    numbers.add_row(
        f"{sight.seconds:.0f}",
        f"{sight.ops_per_s:.0f}",
        f"{sight.sent}",
        f"{sight.in_flight}",
        f"{sight.redelivered}",
        f"{sight.refused}",
        f"{sight.rejected}",
        f"{sight.batch_ms:.0f}",
    )
    lanes = Table(title="commit lag, by lane", title_justify="left")
    lanes.add_column("group")
    shown = min(QUEUES_SHOWN, max(map(len, sight.lags.values()), default=0))
    for queue_id in range(shown):
        lanes.add_column(str(queue_id), justify="right")
    for group, lags in sight.lags.items():
        lanes.add_row(group, *(Text(str(lag), style="green" if not lag else "") for lag in lags[:shown]))
    return Group(numbers, lanes)


class View:
    """Shows progress, from entry to exit; on standard error when standard output is for JSON."""

    def __init__(self, *, json_output: bool) -> None:
        self._console = Console(stderr=json_output, highlight=False)
        self._live: Live | None = None
        self._last_line_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def say(self, text: str) -> None:
        """Tell what is being done now."""
        self.close()
        self._console.print(f"  {text}", markup=False)

    def show(self, sight: Sight) -> None:
        """Show how it stands; seldom, where that is a line of its own."""
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(as_table(sight), refresh=True)
        elif time.monotonic() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            self._console.print(as_line(sight), markup=False, soft_wrap=True)
            sys.stdout.flush()

    def close(self) -> None:
        """Leave what is shown as it is, and go on below."""
        if self._live is not None:
            self._live.stop()
            self._live = None
