"""Moments and durations as people write them.

A moment is in ms since 1970, and any number: producers choose some of them. One that no calendar has is written as that
number.
"""

from datetime import UTC, datetime, tzinfo

__all__ = ["day_text", "duration_text", "moment_text", "time_of_day", "utc_text", "zone_name", "zoned_moment_text"]


def time_of_day(at_ms: int, zone: tzinfo) -> str:
    """Return the time of day of a moment.

    >>> time_of_day(1_795_638_863_761, UTC), time_of_day(10**20, UTC)
    ('20:34:23.761', '100000000000000000000 ms since 1970')
    """
    moment = _moment(at_ms, zone)
    return f"{at_ms} ms since 1970" if moment is None else f"{moment.time().isoformat()}.{at_ms % 1000:03d}"


def day_text(at_ms: int, zone: tzinfo) -> str:
    """Return the day of a moment, or nothing.

    >>> day_text(1_795_638_863_761, UTC), day_text(10**20, UTC)
    ('2026-11-25', '')
    """
    moment = _moment(at_ms, zone)
    return "" if moment is None else moment.date().isoformat()


def moment_text(at_ms: int, zone: tzinfo) -> str:
    """Return a moment with its day, its milliseconds only if it has some.

    >>> moment_text(1_795_638_863_761, UTC), moment_text(1_795_638_863_000, UTC)
    ('2026-11-25 20:34:23.761', '2026-11-25 20:34:23')
    """
    return f"{day_text(at_ms, zone)} {time_of_day(at_ms, zone).removesuffix('.000')}".strip()


def zoned_moment_text(at_ms: int, zone: tzinfo) -> str:
    """Return a moment with its day and the name of its time zone.

    >>> zoned_moment_text(1_795_638_863_761, UTC), zoned_moment_text(10**20, UTC)
    ('2026-11-25 20:34:23.761 UTC', '100000000000000000000 ms since 1970')
    """
    text = moment_text(at_ms, zone)
    return text if _moment(at_ms, zone) is None else f"{text} {zone_name(at_ms, zone)}"


def utc_text(at_ms: int) -> str:
    """Return a moment in UTC, in a form that options of the command line take.

    >>> utc_text(1_893_456_000_500), utc_text(-1_000), utc_text(10**20)
    ('2030-01-01 00:00:00.500Z', '1969-12-31 23:59:59Z', '100000000000000000000 ms since 1970')
    """
    text = moment_text(at_ms, UTC)
    return text if _moment(at_ms, UTC) is None else f"{text}Z"


def zone_name(at_ms: int, zone: tzinfo) -> str:
    """Return the name of the time zone at a moment."""
    moment = _moment(at_ms, zone)
    return "UTC" if moment is None else moment.tzname() or "UTC"


def duration_text(ms: int) -> str:
    """Return a duration, in its two largest units.

    >>> [duration_text(ms) for ms in (0, 250, 2_100, 30_000, 200_000, 18_180_000, 190_800_000)]
    ['0 ms', '250 ms', '2.1 s', '30 s', '3 min 20 s', '5 h 3 min', '2 d 5 h']
    """
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s".replace(".0 ", " ")
    units = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
    index = next(number for number, (_, size) in enumerate(units) if ms >= size)
    (name, size), (small_name, small_size) = units[index], units[index + 1]
    rest = ms % size // small_size
    return f"{ms // size} {name}" + (f" {rest} {small_name}" if rest else "")


def _moment(at_ms: int, zone: tzinfo) -> datetime | None:
    try:
        return datetime.fromtimestamp(at_ms // 1000, zone)
    except (ValueError, OverflowError, OSError):  # out of Python's range, or of the platform's
        return None
