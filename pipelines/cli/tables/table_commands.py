"""The commands on the Delta tables of a job: `query`, `maintain` and `check`."""

# ruff: noqa: PLC0415 - so that `popstream --help` takes a moment and not ten seconds
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import DEFAULT_VAR, JobOptions, JsonOutput, Var, with_options
from popstream.wire.base_errors import Invalid

__all__ = ["check", "maintain", "query"]

DEFAULT_DATA_DOCS = Path("var/data_docs")


@with_options(job=JobOptions)
def query(
    sql: Annotated[str, typer.Argument(help="one SELECT, DESCRIBE, SHOW or EXPLAIN statement")],
    max_rows: Annotated[int, typer.Option(help="rows printed at most; 0: all", min=0)] = 1000,
    as_csv: Annotated[bool, typer.Option("--csv", help="print comma-separated values with a header")] = False,  # noqa: FBT002
    var: Var = DEFAULT_VAR,
    *,
    job: JobOptions,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
) -> None:
    """Run SQL on the audit tables. Works while the job is running.

    Tables: operations, deliveries, commit_positions, order_info, rejected,
    consume_queue, quality_results.
    With one row per message: operations_by_message, deliveries_by_message.

    Time travel: SELECT count(*) FROM operations VERSION AS OF 3
    or TIMESTAMP AS OF '2030-01-31 12:00'; DESCRIBE HISTORY operations
    lists the versions. By path: FROM delta.`/a/folder/delta/operations`.
    """
    from checkpoints.layout import JobFolder
    from pipelines.cli.tables.query import Output, run_query

    if as_csv and as_json:
        message = "choose one of --csv and --json"
        raise Invalid(message)
    output = Output.CSV if as_csv else Output.JSON if as_json else Output.TABLE
    run_query(JobFolder(job.load().folder).delta, sql, var=var, output=output, rows_max=max_rows)


@with_options(job=JobOptions)
def maintain(
    var: Var = DEFAULT_VAR,
    *,
    job: JobOptions,
    as_json: JsonOutput = False,
) -> None:
    """Compact the tables, and delete files that no version of the last week uses.

    A running job does so itself every `maintain_interval_s`.
    """
    from checkpoints.layout import JobFolder
    from pipelines.cli.tables.maintain import run_maintain

    run_maintain(JobFolder(job.load().folder.absolute()), var=var, as_json=as_json)


@with_options(job=JobOptions)
def check(
    data_docs: Annotated[
        Path, typer.Option(help="folder for Data Docs; each run replaces its contents")
    ] = DEFAULT_DATA_DOCS,
    var: Var = DEFAULT_VAR,
    *,
    job: JobOptions,
    as_json: JsonOutput = False,
) -> None:
    """Check the audit tables against the expectations. Exit code 1: one does not hold."""
    from checkpoints.layout import JobFolder
    from pipelines.cli.tables.check_tables import run_check

    run_check(JobFolder(job.load().folder).delta, var=var, data_docs=data_docs, as_json=as_json)
