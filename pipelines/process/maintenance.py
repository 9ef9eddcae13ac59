"""Maintenance of the tables, beside the job: compaction in a process of its own, then VACUUM."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from connectors.delta import compaction
from connectors.delta.compaction import Compacted
from connectors.delta.tables import TABLES, table_path
from popstream.wire.failures import Unavailable

__all__ = ["Maintained", "maintain"]

LOOK_S = 0.2
# What runs is the code of this process, wherever that was started.
CODE = Path(compaction.__file__).parents[2]


class Maintained(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one table's files.

    Attributes:
        table: Its name.
        compacted: Files that were joined.
        into: Files that they are now.
        removed: Files that were of no version younger than a week, and are gone.
    """

    table: str
    compacted: int
    into: int
    removed: int


def maintain(spark: SparkSession, root: Path, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Maintained]:
    """Compact every table, then remove the files that no version of the last week has; beside a running job, too.

    What is younger than the table's retention, a week, stays: somebody may still read it, or be about to commit it. A
    table is done when its outcome comes. One that fails does not keep the others from it, and is told after them.

    Raises:
        Unavailable: Some of the tables could not be maintained.
    """
    failures: list[str] = []
    for table in compacted_aside(root, should_stop):
        if should_stop():
            return
        try:
            removed = _vacuumed(spark, table_path(root, table.table))
        except Exception as error:  # noqa: BLE001 - py4j raises what it likes
            failures.append(f"{table.table}: {error}")
            continue
        if table.failure is not None:
            failures.append(f"{table.table}: {table.failure}")
            continue
        yield Maintained(table=table.table, compacted=table.compacted, into=table.into, removed=removed)
    if failures:
        raise Unavailable("; ".join(failures), subject=str(root))


def compacted_aside(root: Path, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Compacted]:
    """Compact all tables below `root` in another process, and wait for it, or until `should_stop`.

    Its memory is not ours, and it takes no CPU that the job wants. The table at which it ended before its time has
    that as its failure, and another process goes on after it.
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
    """What it has done, and why it ended before its time."""
    command = [sys.executable, "-m", compaction.__name__, str(root.absolute()), *tables]
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        # In a group of its own no key reaches it. In a session of its own it would have the CPU of one: Linux
        # shares it among sessions, and heeds a process's priority only within them.
        subprocess.Popen(  # noqa: S603 - the command is ours
            command, cwd=CODE, stdin=subprocess.PIPE, stdout=output, stderr=errors, process_group=0
        ) as process,
    ):
        try:
            while process.poll() is None and not should_stop():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
        finally:
            was_stopped = process.poll() is None
            process.kill()
        process.wait()
        output.seek(0)
        done = [msgspec.json.decode(line, type=Compacted) for line in output]
        errors.seek(0)
        said = errors.read().decode(errors="replace").splitlines() or ["nothing"]
    if process.returncode and not was_stopped:
        return done, f"compaction ended with exit code {process.returncode} and said: {said[-1]}"
    return done, None


def _vacuumed(spark: SparkSession, path: Path) -> int:
    """How many files are gone."""
    if not path.is_dir():
        return 0
    before = _files(path)
    DeltaTable.forPath(spark, str(path)).vacuum()
    return len(before - _files(path))


def _files(path: Path) -> set[Path]:
    return {file for file in path.rglob("*.parquet") if "_delta_log" not in file.parts}
