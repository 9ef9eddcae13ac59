"""Compares rows by their key, columns at a time; only where something differs are single rows looked at."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.delta.erased_values import is_withheld
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import KEY_COLUMNS, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

__all__ = ["EXAMPLES_MAX", "ROW_KEY", "Comparison", "comparable_schema", "compare_rows", "described_row"]

ROW_KEY: Final = tuple(name for name in KEY_COLUMNS if name != "ops_topic_id")
"""Key of an audit row within its ops topic."""

EXAMPLES_MAX: Final = 3
_HOLDER: Final = frozenset(("step", "client_id"))
"""Columns of `deliveries`. Rows of older versions do not name the client whose lease ended without it."""
_VALUE_CHARACTERS_MAX: Final = 200


class Comparison(msgspec.Struct, kw_only=True):
    """Numbers of rows, and the first ones that differ; comparisons of stretches add up.

    Attributes:
        wanted: Rows that should be there.
        missing: Of these, rows that are not there.
        changed: Of these, rows that are there with other values.
        extra: Rows that should not be there.
        repeated: Rows that are there once more, or several times more.
        examples: Some of all these, in words.
    """

    wanted: int = 0
    missing: int = 0
    changed: int = 0
    extra: int = 0
    repeated: int = 0
    examples: list[str] = []

    @property
    def equal(self) -> int:
        """Rows that are there as they should be."""
        return self.wanted - self.missing - self.changed

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.changed or self.extra or self.repeated)

    def add(self, other: Self) -> None:
        """Add the comparison of another stretch."""
        for name in ("wanted", "missing", "changed", "extra", "repeated"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.examples = [*self.examples, *other.examples][:EXAMPLES_MAX]

    def lines(self, rows: str) -> list[str]:
        """Return what differs, in words; nothing if everything is equal.

        >>> Comparison(wanted=1_200, missing=1, extra=2, examples=["orders/0 ..."]).lines("rows of t")
        ['1 of 1,200 rows of t are missing', '2 of 1,201 rows of t are too many', 'orders/0 ...']
        """
        there = self.wanted - self.missing + self.extra
        found = (
            (self.changed, self.wanted, "differ"),
            (self.missing, self.wanted, "are missing"),
            (self.extra, there, "are too many"),
            (self.repeated, there, "are there repeatedly"),
        )
        return [f"{count:,} of {of:,} {rows} {what}" for count, of, what in found if count] + self.examples


def comparable_schema(table: Table) -> pa.Schema:
    """Return the columns of an audit table that every replay leads to."""
    decided = [column.name for column in table.decided_columns]
    return pa.schema([field for field in arrow_schema(table) if field.name in decided])


def compare_rows(
    wanted: pa.Table, found: pa.Table, key: Sequence[str], described: Callable[[dict[str, Any]], str]
) -> Comparison:
    """Compare two tables of the same columns, in any order.

    Args:
        wanted: The rows that should be there; each key once.
        found: The rows that are there.
        key: Columns of integers.
        described: Returns the name of a row, for people.
    """
    wanted, found = _ordered(wanted, key), _ordered(found, key)
    if wanted.equals(found):
        return Comparison(wanted=wanted.num_rows)
    return _differences(wanted, found, key, described)


def described_row(row: dict[str, Any]) -> str:
    """Return the name of an audit row.

    >>> described_row({"topic": "orders", "queue_id": 0, "partition": 3, "kafka_offset": 12, "ordinal": 0})
    'orders/0, Kafka offset 12 of partition 3, row 0'
    """
    queue = f"{row['topic']}/{row['queue_id']}, " if "topic" in row else ""
    return f"{queue}Kafka offset {row['kafka_offset']} of partition {row['partition']}, row {row['ordinal']}"


def _ordered(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Sort by the key, unless the rows are in order; whether they are is seen at a fraction of the cost."""
    columns = [rows[name].fill_null(-1).to_numpy() for name in key]
    is_ascending = np.ones(max(0, rows.num_rows - 1), np.bool_)
    for column in reversed(columns):
        step = np.diff(column)
        is_ascending = (step > 0) | ((step == 0) & is_ascending)
    rows = rows.combine_chunks()
    return rows if is_ascending.all() else rows.take(pa.array(np.lexsort(columns[::-1])))


def _differences(
    wanted: pa.Table, found: pa.Table, key: Sequence[str], described: Callable[[dict[str, Any]], str]
) -> Comparison:
    wanted_keys, found_keys = _keys(wanted, key), _keys(found, key)
    times = Counter(found_keys)
    at = {found_key: row for row, found_key in reversed(list(enumerate(found_keys)))}
    known = set(wanted_keys)
    both = [(row, at[each]) for row, each in enumerate(wanted_keys) if each in at]
    missing = [row for row, each in enumerate(wanted_keys) if each not in at]
    extra = [row for row, each in enumerate(found_keys) if each not in known]
    repeated = [at[each] for each, count in times.items() if count > 1]
    ours, theirs = _taken(wanted, [row for row, _ in both]), _taken(found, [row for _, row in both])
    unequal = {name: _unequal(name, ours[name], theirs[name]) for name in wanted.schema.names}
    if _HOLDER.issubset(unequal):
        unequal["client_id"] &= ~np.asarray(pc.is_null(theirs["client_id"]).to_numpy(), np.bool_)
    changed = np.flatnonzero(np.logical_or.reduce([*unequal.values(), np.zeros(len(both), np.bool_)]))

    def examples() -> Iterator[str]:
        for row in changed[:EXAMPLES_MAX].tolist():
            one, other = ours.slice(row, 1).to_pylist()[0], theirs.slice(row, 1).to_pylist()[0]
            names = [name for name, mask in unequal.items() if mask[row]]
            values = ", ".join(f"{name} is {_shown(other[name])} instead of {_shown(one[name])}" for name in names)
            yield f"{described(one)}: {values}"
        others = ((wanted, missing, "missing"), (found, extra, "too many"), (found, repeated, "there repeatedly"))
        for table, rows, what in others:
            for row in rows[:EXAMPLES_MAX]:
                one = table.slice(row, 1).to_pylist()[0]
                yield f"{described(one)} is {what}: {_shown(one)}"

    return Comparison(
        wanted=wanted.num_rows,
        missing=len(missing),
        changed=len(changed),
        extra=len(extra),
        repeated=len(repeated),
        examples=list(examples())[:EXAMPLES_MAX],
    )


def _taken(rows: pa.Table, numbers: list[int]) -> pa.Table:
    return rows.take(pa.array(numbers, pa.int64()))


def _keys(rows: pa.Table, key: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in key), strict=True))


def _unequal(name: str, one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    equal = pc.fill_null(pc.equal(one, other), False)
    same = pc.or_(equal, pc.and_(pc.is_null(one), pc.is_null(other)))
    unequal = ~np.asarray(same.to_numpy(), np.bool_)
    for row in np.flatnonzero(unequal).tolist():
        unequal[row] = not is_withheld(name, one[row].as_py(), other[row].as_py())
    return unequal


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else f"{text[:_VALUE_CHARACTERS_MAX]}..."
