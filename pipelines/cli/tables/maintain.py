"""`popstream maintain`: delete old rows, compact the tables, and delete files that no version of the last week uses."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from checkpoints.layout import JobFolder
from connectors.delta.file_access import files_made_with, umask_of_tables
from connectors.delta.session import QUICK_COMPILER
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.spark_tools import reading_session, working
from pipelines.process.maintenance import Maintained, maintain
from popstream.wire.base_errors import Invalid

__all__ = ["run_maintain"]


def run_maintain(folder: JobFolder, retention_days: Mapping[str, int], *, var: Path, as_json: bool) -> None:
    """Maintain all tables of a job. Works while the job is running.

    Raises:
        Invalid: There are no tables.
        Unavailable: Some tables could not be maintained.
    """
    if not folder.delta.is_dir():
        message = f"there are no tables in {folder.root}"
        raise Invalid(message, subject=str(folder.root))
    # VACUUM plans many small queries and scans nothing: without the optimizing compiler it takes half of the time.
    with (
        files_made_with(umask_of_tables(folder.delta)),
        reading_session(var, java_options=[QUICK_COMPILER]) as spark,
        working("compacting"),
    ):
        done = list(maintain(spark, folder.delta, retention_days=retention_days))
    if as_json:
        print(msgspec.json.encode(done).decode())
        return
    print_facts(standard_output(), {each.table: _done_text(each) for each in done})


def _done_text(done: Maintained) -> str:
    old = f", {done.deleted:,} old rows deleted" if done.deleted else ""
    return f"{done.compacted:,} files joined to {done.into:,}, {done.removed:,} deleted{old}"
