"""Maintenance of the Delta tables: retention, compaction in a process of its own, then VACUUM."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from connectors.delta import compaction
from connectors.delta.compaction import Compacted
from connectors.delta.retention import delete_before, newest_day
from connectors.delta.tables import DATED_TABLES, TABLES, table_path
from popstream.wire.base_errors import Corrupt, Unavailable

__all__ = ["Maintained", "maintain"]

POLL_S = 0.2
DAYS_AHEAD_MAX = 30
"""Days from the newest row to the present one. With a clock that is ahead, retention would delete rows that are new,
and a table would say for ever that it begins in the future."""
CODE = Path(compaction.__file__).parents[2]
"""Working directory of the child process, so that it runs the code of this process."""


class Maintained(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one table.

    Attributes:
        table: Name of the table.
        compacted: Files that were joined.
        into: Files that they were joined to.
        removed: Files deleted, because no version of the last week uses them.
        deleted: Rows deleted, because they are older than their retention.
    """

    table: str
    compacted: int
    into: int
    removed: int
    deleted: int = 0


def maintain(
    spark: SparkSession,
    root: Path,
    should_stop: Callable[[], bool] = lambda: False,
    retention_days: Mapping[str, int] | None = None,
) -> Iterator[Maintained]:
    """Delete old rows, compact every table, then delete the files that no version of the last week uses. A job may run.

    Younger files stay: a reader may use them, or a writer may be about to commit them. Yields the outcome of each
    table when it is done. A failure in one table does not affect the others, and is raised at the end.

    Args:
        spark: A session with Delta.
        root: Folder of the tables.
        should_stop: Asked now and then.
        retention_days: By table, how many whole days (UTC) before the present one are kept; others are kept for ever.

    Raises:
        Corrupt: Some tables could not be maintained, one of them because a file of it is damaged.
        Unavailable: Some could not be maintained.
    """
    failures: list[_Failure] = []
    deleted = _delete_old_rows(root, retention_days or {}, failures)
    for table in compacted_aside(root, should_stop):
        if should_stop():
            return
        try:
            removed = _vacuumed(spark, table_path(root, table.table))
        except Exception as error:  # noqa: BLE001 - py4j raises errors of many types
            failures.append(_Failure.of(table.table, error))
            continue
        if table.failure is not None:
            failures.append(_Failure(f"{table.table}: {table.failure}", is_damage=table.is_damaged))
            continue
        yield Maintained(
            table=table.table,
            compacted=table.compacted,
            into=table.into,
            removed=removed,
            deleted=deleted.get(table.table, 0),
        )
    if failures:
        kind = Corrupt if any(failure.is_damage for failure in failures) else Unavailable
        raise kind("; ".join(failure.text for failure in failures), subject=str(root))


class _Failure(NamedTuple):
    """Why a table was not maintained."""

    text: str
    is_damage: bool = False

    @classmethod
    def of(cls, table: str, error: Exception) -> Self:
        return cls(f"{table}: {error}", is_damage=isinstance(error, Corrupt))


def _newest_day(root: Path, failures: list[_Failure]) -> date | None:
    """Return the newest date of all tables that can be read; add what went wrong to `failures`."""
    days = []
    for name in DATED_TABLES:
        try:
            days.append(newest_day(root, name))
        except Exception as error:  # noqa: BLE001 - an error in one table must not affect the others
            failures.append(_Failure.of(name, error))
    return max(filter(None, days), default=None)


def _delete_old_rows(root: Path, retention_days: Mapping[str, int], failures: list[_Failure]) -> dict[str, int]:
    """Return the number of deleted rows by table; add what went wrong to `failures`."""
    today = datetime.now(UTC).date()
    newest = _newest_day(root, failures) if retention_days else None
    if newest is not None and (today - newest).days > DAYS_AHEAD_MAX:
        failures.append(
            _Failure(
                f"no rows were deleted: the newest are of {newest}, and the clock of this machine says {today}; if"
                " that is right, they are deleted when newer ones have come"
            )
        )
        return {}
    deleted = {}
    for name, days in retention_days.items():
        try:
            deleted[name] = delete_before(root, DATED_TABLES[name], today - timedelta(days=days)).rows
        except Exception as error:  # noqa: BLE001 - an error in one table must not affect the others
            failures.append(_Failure.of(name, error))
    return deleted


def compacted_aside(root: Path, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Compacted]:
    """Compact all tables below `root` in a process of low priority, and wait for it, or until `should_stop`.

    When that process dies, the table it worked on fails, and another process continues with the next table.
    """
    left = list(TABLES)
    while left and not should_stop():
        done, failure = _run_compaction(root, left, should_stop)
        yield from done
        if failure is None:
            return
        del left[: len(done)]
        if left:
            yield Compacted(table=left.pop(0), failure=failure)


def _run_compaction(
    root: Path, tables: Sequence[str], should_stop: Callable[[], bool]
) -> tuple[list[Compacted], str | None]:
    """Return the tables that are done, and why the process ended early, if it did."""
    command = [sys.executable, "-m", compaction.__name__, str(root.absolute()), *tables]
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        # A process group of its own keeps Ctrl-C away. Not a session: Linux divides the CPU among sessions first, and
        # the priority of a process counts only within its session.
        subprocess.Popen(  # noqa: S603 - the command is ours
            command, cwd=CODE, stdin=subprocess.PIPE, stdout=output, stderr=errors, process_group=0
        ) as process,
    ):
        try:
            while process.poll() is None and not should_stop():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        finally:
            was_stopped = process.poll() is None
            process.kill()
        process.wait()
        output.seek(0)
        done = [msgspec.json.decode(line, type=Compacted) for line in output]
        errors.seek(0)
        said = errors.read().decode(errors="replace").splitlines() or ["no error output"]
    if process.returncode and not was_stopped:
        return done, f"compaction ended with exit code {process.returncode}: {said[-1]}"
    return done, None


def _vacuumed(spark: SparkSession, path: Path) -> int:
    """Run VACUUM, and return the number of deleted files."""
    if not path.is_dir():
        return 0
    before = _files(path)
    DeltaTable.forPath(spark, str(path)).vacuum()
    return len(before - _files(path))


def _files(path: Path) -> set[Path]:
    return {file for file in path.rglob("*.parquet") if "_delta_log" not in file.parts}
