"""Moments and durations as people write them."""

from datetime import datetime, tzinfo

__all__ = ["clock_text", "day_text", "duration_text", "moment_text", "zone_text"]


def clock_text(at_ms: int, zone: tzinfo) -> str:
    """Return the time of day of a moment, in ms since 1970; any number, for producers choose some of them.

    >>> from datetime import UTC
    >>> clock_text(1_795_638_863_761, UTC)
    '20:34:23.761'
    """
    moment = _moment(at_ms, zone)
    return f"{at_ms} ms since 1970" if moment is None else moment.strftime("%H:%M:%S.") + f"{at_ms % 1000:03d}"


def day_text(at_ms: int, zone: tzinfo) -> str:
    """Return the day of a moment.

    >>> from datetime import UTC
    >>> day_text(1_795_638_863_761, UTC)
    '2026-11-25'
    """
    moment = _moment(at_ms, zone)
    return "" if moment is None else moment.strftime("%Y-%m-%d")


def moment_text(at_ms: int, zone: tzinfo) -> str:
    """Return a moment with its day, its milliseconds only if it has some.

    >>> from datetime import UTC
    >>> moment_text(1_795_638_863_761, UTC), moment_text(1_795_638_863_000, UTC)
    ('2026-11-25 20:34:23.761', '2026-11-25 20:34:23')
    """
    return f"{day_text(at_ms, zone)} {clock_text(at_ms, zone).removesuffix('.000')}".strip()


def zone_text(at_ms: int, zone: tzinfo) -> str:
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
    except (ValueError, OverflowError, OSError):
        return None
