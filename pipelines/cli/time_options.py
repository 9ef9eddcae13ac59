"""Durations and moments of the command line."""

import re
import time
from datetime import UTC, date, datetime
from typing import Any

import typer

__all__ = ["Duration", "duration_ms", "duration_option", "durations_ms", "moment_ms", "since_day", "since_ms"]

DURATION = r"(\d+(?:\.\d+)?)(ms|s|m|h)"
UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


class Duration(int):
    """Milliseconds, written with a unit on the command line.

    >>> str(Duration(30_000)), str(Duration(1_500)), str(Duration(7_200_000))
    ('30s', '1500ms', '2h')
    """

    @classmethod
    def parse(cls, text: "str | Duration") -> "Duration":
        """Parse an option. Raises typer.BadParameter."""
        return text if isinstance(text, Duration) else cls(duration_ms(text))

    def __str__(self) -> str:
        """Return it with the largest unit that divides it."""
        unit = next(unit for unit in reversed(UNIT_MS) if self % UNIT_MS[unit] == 0)
        return f"{int(self) // UNIT_MS[unit]}{unit}"


def duration_option(meaning: str) -> Any:  # noqa: ANN401 - typer's
    """Return an option whose value is a `Duration`; `meaning` is its help."""
    return typer.Option(parser=Duration.parse, metavar="DURATION", help=meaning)


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration with its unit.

    >>> duration_ms("30s"), duration_ms("1.5m"), duration_ms("250ms"), duration_ms("0s")
    (30000, 90000, 250, 0)
    """
    found = re.fullmatch(DURATION, text.strip())
    if found is None:
        message = f"{text!r} is not a duration: write a number and ms, s, m or h, as in 30s"
        raise typer.BadParameter(message)
    try:
        return round(float(found[1]) * UNIT_MS[found[2]])
    except OverflowError as error:
        message = f"{text!r} is too long a time"
        raise typer.BadParameter(message) from error


def durations_ms(text: str) -> list[int]:
    """Parse an option. Raises typer.BadParameter.

    >>> durations_ms("1s,5s,2m"), durations_ms("")
    ([1000, 5000, 120000], [])
    """
    return [duration_ms(part) for part in text.split(",")] if text else []


def moment_ms(text: str) -> int:
    """Return milliseconds since 1970 of such a number, or of an ISO 8601 time (UTC if it names no zone).

    >>> moment_ms("1893456000000"), moment_ms("2030-01-01"), moment_ms("2030-01-01T00:00:00.5Z")
    (1893456000000, 1893456000000, 1893456000500)
    """
    if re.fullmatch("[0-9]{1,19}", text):
        return _in_calendar(int(text), text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is not a time: write milliseconds since 1970, or ISO 8601 as in 2030-01-31T12:00:00Z"
        raise typer.BadParameter(message) from error
    return _in_calendar(round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000), text)


def _in_calendar(time_ms: int, text: str) -> int:
    try:
        datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:  # out of Python's range, or of the platform's
        message = f"{text!r} is not a time of the years 1 to 9999"
        raise typer.BadParameter(message) from error
    return time_ms


def since_ms(text: str) -> int:
    """Return milliseconds since 1970 of a time as `moment_ms` reads it, or of a duration before now, as in 2h.

    >>> since_ms("2030-01-01"), abs(time.time() * 1000 - since_ms("2h") - 7_200_000) < 60_000
    (1893456000000, True)
    """
    if re.fullmatch(DURATION, text.strip()) is None:
        return moment_ms(text)
    return _in_calendar(int(time.time() * 1000) - duration_ms(text), text)


def since_day(text: str) -> date:
    """Return the date (UTC) of a time as `since_ms` reads it.

    >>> since_day("2030-01-31T12:00Z")
    datetime.date(2030, 1, 31)
    """
    return datetime.fromtimestamp(since_ms(text) / 1000, UTC).date()
