"""Whether a table still has the rows that it counts as written: somebody may have RESTOREd it.

A RESTORE brings back the rows of an older version, and not the `txnVersion` of then: a later commit follows, and nobody
writes the rows in between again.

```
version     7       8       9                        10
            own     own     RESTORE to 7             RESTORE to 8
rows        whole   whole   those of 8 are missing   whole
```
"""

from collections.abc import Iterable
from typing import NamedTuple

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from popstream.wire.base_errors import Corrupt

__all__ = ["Change", "last_whole_version", "require_intact"]

RESTORE = "RESTORE"
_NEWEST = 20
"""Commits that are read at first: the last one of the job is mostly among them."""
_ALL = 1_000_000


class Change(NamedTuple):
    """A commit.

    Attributes:
        version: The version that it made.
        operation: Delta's name of what it did.
        restored_version: Of a RESTORE, the version whose rows it brought back; None: it is not known.
        is_own: The job has made it.
    """

    version: int
    operation: str = "WRITE"
    restored_version: int | None = None
    is_own: bool = False


def last_whole_version(changes: Iterable[Change]) -> int | None:
    """Return the newest version that has all rows of the job's last commit; None: there is no such commit.

    Args:
        changes: Commits, the oldest first; without gaps.

    >>> own = Change(8, is_own=True)
    >>> last_whole_version([own, Change(9, "OPTIMIZE")])
    9
    >>> last_whole_version([own, Change(9, RESTORE, 7), Change(10, "OPTIMIZE")])
    8
    >>> last_whole_version([own, Change(9, RESTORE, 7), Change(10, RESTORE, 8), Change(11)])
    11
    >>> last_whole_version([own, Change(9, RESTORE, 7), Change(10, RESTORE, 9)])
    8
    >>> last_whole_version([Change(6), Change(7, RESTORE, 3)]) is None
    True
    """
    whole: set[int] = set()
    for change in changes:
        if change.is_own:
            whole = {change.version}
        elif change.operation == RESTORE:
            if change.restored_version in whole:
                whole.add(change.version)
        elif change.version - 1 in whole:
            whole.add(change.version)
    return max(whole, default=None)


def require_intact(spark: SparkSession, location: str, name: str, app_id: str, upto: int) -> None:
    """Refuse a table that was RESTOREd to a version before the job's last commit.

    A table in which no commit of the job is known is not judged.

    Args:
        spark: Session with Delta.
        location: Path or URL of the table.
        name: Its name.
        app_id: What the commits of the job say about themselves (`SparkAppend`).
        upto: The version that is judged.

    Raises:
        Corrupt: Rows are missing.
        Py4JJavaError: Spark or Delta failed.
    """
    for count in (_NEWEST, _ALL):
        changes = _changes(spark, location, app_id, count)
        whole = last_whole_version(change for change in changes if change.version <= upto)
        if whole == upto:
            return
        if whole is not None:
            message = (
                f"{name} was RESTOREd to a version before the last commit of the job: it lacks rows that it counts as"
                f" written. Bring them back by RESTORE TABLE delta.`{location}` TO VERSION AS OF {whole}, as"
                " SQL of a Spark session with Delta, or begin a new checkpoint with tables of its own"
            )
            raise Corrupt(message, subject=name)


def _changes(spark: SparkSession, location: str, app_id: str, count: int) -> list[Change]:
    """Return the newest commits, the oldest first."""
    rows = DeltaTable.forPath(spark, location).history(count)
    found = rows.select("version", "operation", "operationParameters", "userMetadata").collect()
    changes = []
    for version, operation, parameters, user_metadata in found:
        restored = (parameters or {}).get("version") if operation == RESTORE else None
        is_own = user_metadata == app_id
        changes.append(Change(version, operation, None if restored is None else int(restored), is_own))
    return sorted(changes)
