"""When a message can be popped: the header `popstream-deliver-at`, ms since 1970 in 1 to 15 ASCII digits.

0 means no time: the message can be popped as soon as it is written. So do a missing header and any other value. Of
several such headers the last one counts.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from popstream.wire.headers import DELIVER_AT_HEADER, header_value

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["AT_ONCE", "DELIVER_AT_DIGITS_MAX", "deliver_at_ms_of", "epoch_ms"]

AT_ONCE = 0
"""The time of a message that can be popped as soon as it is written."""
DELIVER_AT_DIGITS_MAX = 15

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def deliver_at_ms_of(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return when a record can be popped by its headers, ms since 1970; 0: at once.

    >>> name = "popstream-deliver-at"
    >>> [deliver_at_ms_of([(name, value)]) for value in (b"1790000000000", b"007", b"-5", b"soon", b"", None)]
    [1790000000000, 7, 0, 0, 0, 0]
    >>> deliver_at_ms_of([(name, b"5"), (name, b"6")]), deliver_at_ms_of([(name, b"5"), (name, b"6.0")])
    (6, 0)
    """
    text = header_value(headers, DELIVER_AT_HEADER)
    return int(text) if text.isdigit() and len(text) <= DELIVER_AT_DIGITS_MAX else AT_ONCE


def epoch_ms(time: datetime | int) -> int:
    """Return ms since 1970 of a time; an int is that already.

    >>> epoch_ms(datetime(2026, 9, 21, 14, 13, 20, 1_999, tzinfo=UTC)), epoch_ms(5)
    (1790000000001, 5)

    Raises:
        ValueError: A datetime has no time zone.
    """
    if isinstance(time, int):
        return time
    if time.utcoffset() is None:
        message = f"{time.isoformat()} has no time zone"
        raise ValueError(message)
    return (time - _EPOCH) // timedelta(milliseconds=1)
