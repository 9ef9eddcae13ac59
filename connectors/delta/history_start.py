"""From when on a table has its rows, if retention has deleted earlier ones: its log says so.

```
txnAppId             txnVersion
history/first_day    first date that is kept, in days since 1970
history/epoch_max    highest epoch in the deleted rows of `deliveries`
```

Rows of earlier dates may be there and may not: nobody compares or counts them. The numbers are transaction identifiers
for the reasons of ADR 14, and only rise.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "EPOCH_MAX",
    "FIRST_DAY",
    "HISTORY_BEGINS",
    "date_sql",
    "deleted_epoch_max",
    "first_day_of",
    "first_ms_of",
    "history_begins",
]

HISTORY_BEGINS: Final = "history_begins"
"""Name of a view."""

FIRST_DAY: Final = "history/first_day"
EPOCH_MAX: Final = "history/epoch_max"

_EPOCH: Final = dt.date(1970, 1, 1)
_MS_PER_DAY: Final = 86_400_000


def first_day_of(txns: Mapping[str, int]) -> dt.date | None:
    """Return the first date of which a table has all rows; None: it has all that were ever written.

    >>> first_day_of({"history/first_day": 20_000}), first_day_of({})
    (datetime.date(2024, 10, 4), None)
    """
    day = txns.get(FIRST_DAY)
    return None if day is None else _EPOCH + dt.timedelta(days=day)


def history_begins(first_days: Mapping[str, dt.date | None]) -> str:
    """Return the query of the view `history_begins`: a row for each table, with that date.

    >>> history_begins({"rejected": None})
    "SELECT 'rejected' AS table_name, CAST(NULL AS DATE) AS first_day"
    """
    rows = (f"SELECT '{table}' AS table_name, {date_sql(day)} AS first_day" for table, day in first_days.items())
    return " UNION ALL ".join(rows)


def date_sql(day: dt.date | None) -> str:
    """Return a date, or its absence, as SQL."""
    return "CAST(NULL AS DATE)" if day is None else f"DATE '{day}'"


def first_ms_of(txns: Mapping[str, int]) -> int | None:
    """Return the beginning of that date, ms since 1970."""
    day = txns.get(FIRST_DAY)
    return None if day is None else day * _MS_PER_DAY


def deleted_epoch_max(txns: Mapping[str, int]) -> int:
    """Return the highest epoch in rows that retention has deleted; 0: none."""
    return txns.get(EPOCH_MAX, 0)
