"""How long the parts of the job's work take: measured once, for metrics, logs and traces."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["Fact", "Lap", "OnLap", "ignore_lap", "seconds_of"]

Fact = str | int | list[str]

AT_ONCE_S = 0.01
LOOP_PARTS_MAX = 3
"""Parts of which the turns of a loop consist."""


class Lap:
    """Measures the block for which it is entered; entered again, it goes on.

    Args:
        name: What is done.
        on_end: Called with the lap each time that it is left, also by an error; must neither block nor raise.

    Attributes:
        began_s: When it was entered first, in seconds of `time.perf_counter`.
        ended_s: When it was left last, likewise.
        seconds: How long it was entered in all.
        facts: What was done, by name.
        parts: Laps within it.
        error: What its block has raised; None: nothing, or it was told and forgotten.

    >>> with Lap("flush") as lap, lap.part("commit"):
    ...     lap.facts["rows"] = 3
    >>> lap.seconds >= lap.parts[0].seconds > 0, lap.facts
    (True, {'rows': 3})
    """

    __slots__ = ("_entered_s", "_on_end", "began_s", "ended_s", "error", "facts", "name", "parts", "seconds")

    def __init__(self, name: str, on_end: Callable[["Lap"], None] | None = None) -> None:
        self.name = name
        self.began_s = self.ended_s = self._entered_s = self.seconds = 0.0
        self.facts: dict[str, Fact] = {}
        self.parts: list[Lap] = []
        self.error: BaseException | None = None
        self._on_end = on_end

    def part(self, name: str) -> "Lap":
        """Return a lap within this one, to be entered.

        A part that comes again at once, alone or after others, is one lap: they are the turns of a loop.
        """
        known = next((part for part in reversed(self.parts[-LOOP_PARTS_MAX:]) if part.name == name), None)
        if known is None or known.error or time.perf_counter() - known.ended_s > AT_ONCE_S:
            known = Lap(name)
            self.parts.append(known)
        return known

    def __enter__(self) -> Self:
        self._entered_s = time.perf_counter()
        self.began_s = self.began_s or self._entered_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended_s = time.perf_counter()
        self.seconds += self.ended_s - self._entered_s
        self.error = error
        if self._on_end is not None:
            self._on_end(self)
            self.forget_errors()

    def forget_errors(self) -> None:
        """Let go of the errors of this lap and its parts, once they are told.

        Their tracebacks have the frames that have the lap: what these hold, such as an open store, would stay until the
        next garbage collection.
        """
        self.error = None
        for part in self.parts:
            part.forget_errors()


OnLap = Callable[[Lap], None]
"""Is told that a piece of work has ended, or failed; neither blocks nor raises."""


def ignore_lap(_: Lap) -> None:
    """Do nothing."""


def seconds_of(lap: Lap) -> dict[str, float]:
    """Return the seconds of the parts of a lap, by name, in the order of their first time."""
    seconds: dict[str, float] = {}
    for part in lap.parts:
        seconds[part.name] = seconds.get(part.name, 0.0) + part.seconds
    return seconds
