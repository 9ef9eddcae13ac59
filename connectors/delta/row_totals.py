"""How many rows a table has to have, and what is in them, kept in its own log: none is lost or changed unseen.

```
txnAppId                                 txnVersion
row_totals/<state epoch>/<date>/rows     rows of this date that the epoch has written
row_totals/<state epoch>/<date>/digest   sum of their digests (row_digest.py), modulo 2^63
row_totals/<state epoch>/<date>/erased   by how much the digest has changed since, because texts were erased
row_totals/<state epoch>/counted/after   rows of WriteBatches up to this one are not counted; -1: all are
```

A commit with rows sets the totals of the dates that it adds to, so rows and totals become durable together. Delta keeps
the last version of each application in every checkpoint of the log, and other tools that delete, change, add or restore
rows leave it as it is. What the files hold must add up to it (expectations/row_totals.py).
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.delta.damage import how_to_repair
from connectors.delta.row_digest import row_digests
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = [
    "NO_ROWS",
    "RowTotal",
    "RowTotalsWriter",
    "Totals",
    "WrittenTotals",
    "appended_totals",
    "digest_change",
    "sum_of",
    "totals_by_day",
]

_FAMILY: Final = "row_totals"
_AFTER: Final = "counted/after"
_MODULUS: Final = 1 << 63
_UNKNOWN: Final = -1
"""The rows of a date that are not known any more: a RESTORE has removed some, and `popstream restore` has dealt with
it."""


class RowTotal(NamedTuple):
    """A number of rows, and the sum of their digests modulo 2^63."""

    rows: int
    digest: int

    def plus(self, other: RowTotal) -> RowTotal:
        """Return the total of both.

        >>> RowTotal(2, (1 << 63) - 1).plus(RowTotal(1, 3))
        RowTotal(rows=3, digest=2)
        """
        return RowTotal(self.rows + other.rows, (self.digest + other.digest) % _MODULUS)


NO_ROWS: Final = RowTotal(0, 0)

Totals = dict[dt.date, RowTotal]
"""The rows of each date."""


def sum_of(found: Iterable[Totals]) -> Totals:
    """Return totals of the same table as one."""
    added: Totals = {}
    for totals in found:
        for day, total in totals.items():
            added[day] = added.get(day, NO_ROWS).plus(total)
    return added


def totals_by_day(rows: pa.Table, day: str) -> Totals:
    """Return the total of the rows of each date; `day` is the column with the date."""
    digests = row_digests(rows)
    dates = rows[day].combine_chunks()
    return {
        value.as_py(): _total(digests[pc.equal(dates, value).to_numpy(zero_copy_only=False).astype(np.bool_)])
        for value in dates.unique()
        if value.is_valid
    }


def _total(digests: np.ndarray) -> RowTotal:
    return RowTotal(len(digests), int(digests.sum(dtype=np.uint64)) % _MODULUS)


class WrittenTotals:
    """What the log of a table says about the rows that have been written to it.

    Args:
        table: Name of the table.
        txns: The last `txnVersion` by `txnAppId`.

    Raises:
        Corrupt: An entry of the log is damaged.

    Attributes:
        by_epoch: By state epoch and date, the total of the rows that are counted. None: it is not known.
        after: By state epoch, the WriteBatch after which rows are counted. Of epochs that are missing all are.
        erased: By state epoch and date, what `popstream erase` has added to the digest. Only it sets this, so that it
            need not wait for the writer, whose totals stay as they were.
    """

    def __init__(self, table: str, txns: Mapping[str, int]) -> None:
        """Read the entries of the totals."""
        self.by_epoch: dict[str, dict[dt.date, RowTotal | None]] = {}
        self.after: dict[str, int] = {}
        self.erased: dict[tuple[str, dt.date], int] = {}
        for app, version in txns.items():
            if not app.startswith(f"{_FAMILY}/"):
                continue
            try:
                self._read(app, version, txns)
            except (KeyError, ValueError) as error:
                message = f"the log of {table} is damaged: {app!r} is no total of rows: {how_to_repair(table)}"
                raise Corrupt(message, subject=table) from error

    def _read(self, app: str, version: int, txns: Mapping[str, int]) -> None:
        _, epoch, rest = app.split("/", maxsplit=2)
        date, _, of = rest.rpartition("/")
        if rest == _AFTER:
            self.after[epoch] = version
            self.by_epoch.setdefault(epoch, {})
        elif of == "erased":
            self.erased[epoch, dt.date.fromisoformat(date)] = version
        elif of == "rows":
            total = None if version == _UNKNOWN else RowTotal(version, txns[_app(epoch, f"{date}/digest")])
            self.by_epoch.setdefault(epoch, {})[dt.date.fromisoformat(date)] = total

    def total(self, epoch: str, date: dt.date) -> RowTotal | None:
        """Return the total that the rows of a date have now; None: it is not known."""
        total = self.by_epoch.get(epoch, {}).get(date, NO_ROWS)
        return None if total is None else total.plus(RowTotal(0, self.erased.get((epoch, date), 0)))


def digest_change(
    written: WrittenTotals, partition_values: Mapping[str, str | None], before: pa.Table, after: pa.Table
) -> dict[str, int]:
    """Return by how much digests change when rows are replaced one by one, by the `txnAppId` that says so.

    Args:
        written: What the log says about the rows of the table.
        partition_values: Of the file with the rows: the date by its column, or nothing in a table without dates.
        before: The rows, without the column of their date.
        after: Rows of the same epochs and WriteBatches, in the same order.
    """
    found: dict[str, int] = {}
    for column, value in partition_values.items():
        if value is None:
            continue
        number = "apply_seq" if "apply_seq" in before.schema.names else "build_seq"
        date = pa.repeat(pa.scalar(dt.date.fromisoformat(value), pa.date32()), before.num_rows)
        for epoch in before["state_epoch"].unique().to_pylist():
            if epoch not in written.by_epoch:
                continue
            is_of = pc.equal(before["state_epoch"], epoch)
            is_counted = pc.and_(is_of, pc.greater(before[number], written.after.get(epoch, -1)))
            sums = [
                _total(row_digests(rows.append_column(column, date).filter(is_counted))).digest
                for rows in (before, after)
            ]
            if change := (sums[1] - sums[0]) % _MODULUS:
                found[_app(epoch, f"{value}/erased")] = change
    return found


def appended_totals(
    state_epoch: str, added: Mapping[dt.date, RowTotal], last: Callable[[str], int | None], *, is_first: bool
) -> dict[str, int]:
    """Return what a commit has to set, by `txnAppId`, if its writer knows nothing but what the log says.

    Args:
        state_epoch: The epoch of the rows.
        added: The total of the rows of each date.
        last: Returns the last `txnVersion` of a `txnAppId`; None: there is none.
        is_first: No commit before has rows of this epoch. Otherwise they are counted only if those before are.

    >>> log = appended_totals("e", {dt.date(2026, 9, 1): RowTotal(2, 7)}, lambda app: None, is_first=True)
    >>> log
    {'row_totals/e/counted/after': -1, 'row_totals/e/2026-09-01/rows': 2, 'row_totals/e/2026-09-01/digest': 7}
    >>> appended_totals("e", {dt.date(2026, 9, 1): RowTotal(1, 1)}, log.get, is_first=False)
    {'row_totals/e/2026-09-01/rows': 3, 'row_totals/e/2026-09-01/digest': 8}
    >>> appended_totals("e", {dt.date(2026, 9, 1): RowTotal(1, 1)}, lambda app: None, is_first=False)
    {}
    """
    after = _app(state_epoch, _AFTER)
    if not is_first and last(after) is None:
        return {}
    found = {after: -1} if is_first else {}
    for date, total in added.items():
        before = RowTotal(*(last(app) or 0 for app in _txns_of(state_epoch, date, NO_ROWS)))
        if before.rows != _UNKNOWN:
            found |= _txns_of(state_epoch, date, before.plus(total))
    return found


class RowTotalsWriter:
    """Counts the rows that one writer commits.

    Args:
        table: Name of the table.
        state_epoch: The epoch of the writer.
        txns: The last `txnVersion` by `txnAppId`, as the log has them.
        committed: Its last WriteBatch with rows in the table; -1: none.
        was_restored: The table was RESTOREd since the last commit of a job, and `popstream restore` has dealt with it.

    Raises:
        Corrupt: An entry of the log is damaged.
    """

    def __init__(
        self, table: str, state_epoch: str, txns: Mapping[str, int], committed: int, *, was_restored: bool
    ) -> None:
        """Read the totals that the log has."""
        written = WrittenTotals(table, txns)
        self._epoch = state_epoch
        self._totals = {day: total or NO_ROWS for day, total in written.by_epoch.get(state_epoch, {}).items()}
        self._adding: Totals = {}
        self._due = dict(self._of_first_commit(written, committed, was_restored=was_restored))
        """What else the next commit sets."""

    def _of_first_commit(
        self, written: WrittenTotals, committed: int, *, was_restored: bool
    ) -> Iterator[tuple[str, int]]:
        if committed >= 0 and self._epoch not in written.by_epoch:
            yield _app(self._epoch, _AFTER), committed
        if was_restored:
            for epoch, totals in written.by_epoch.items():
                for day in totals:
                    yield _app(epoch, f"{day}/rows"), _UNKNOWN

    def add(self, rows: pa.Table, day: str) -> None:
        """Count rows of the next commit; `day` is the column with their date."""
        self._adding = sum_of([self._adding, totals_by_day(rows, day)])

    def txns(self) -> dict[str, int]:
        """Return what the next commit has to set, by `txnAppId`."""
        found = dict(self._due)
        for day, added in self._adding.items():
            found |= _txns_of(self._epoch, day, self._totals.get(day, NO_ROWS).plus(added))
        return found

    def committed(self) -> None:
        """Note that the commit has been made."""
        self._totals = sum_of([self._totals, self._adding])
        self._due = {}
        self.discard()

    def discard(self) -> None:
        """Forget the rows of a commit that was not made."""
        self._adding = {}


def _txns_of(epoch: str, date: dt.date, total: RowTotal) -> dict[str, int]:
    """Return what a commit sets for the total of a date, by `txnAppId`."""
    return {_app(epoch, f"{date}/{of}"): value for of, value in total._asdict().items()}


def _app(epoch: str, rest: str) -> str:
    return f"{_FAMILY}/{epoch}/{rest}"
