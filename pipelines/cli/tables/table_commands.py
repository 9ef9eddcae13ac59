"""The commands on the Delta tables of a job: `query`, `why`, `report`, `maintain`, `erase` and `check`."""

# ruff: noqa: PLC0415 - so that `popstream --help` takes a moment and not ten seconds
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import (
    DEFAULT_VAR,
    FolderOptions,
    JobPrefix,
    JobServers,
    JsonOutput,
    KafkaConfig,
    StoryOptions,
    TableOptions,
    Tables,
    Var,
    takes_options,
)
from pipelines.cli.tables.query_options import Engine, Output, QueryOptions, versions_by_table
from pipelines.cli.time_options import duration_ms, moment_ms, since_ms
from popstream.wire.base_errors import Invalid

__all__ = ["check", "erase", "maintain", "query", "report", "why"]

DEFAULT_DATA_DOCS = Path("var/data_docs")


@takes_options(job=TableOptions)
def query(
    sql: Annotated[
        str, typer.Argument(help="one SELECT, FROM, DESCRIBE, SHOW, SUMMARIZE or EXPLAIN statement", metavar="SQL")
    ],
    max_rows: Annotated[int, typer.Option(help="maximum number of rows to print; 0: all", min=0)] = 1000,
    vertical: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--vertical", help="print a line per value; default when columns do not fit")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="print comma-separated values with a header")] = False,  # noqa: FBT002
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="write all rows to a new file instead")] = None,
    version: Annotated[
        list[str] | None,
        typer.Option(metavar="[TABLE=]N", help="read this version of a table; repeat for several tables"),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="read the tables as they were then, as in 2030-01-31T12:00Z")
    ] = None,
    engine: Annotated[Engine, typer.Option(help="what runs the SQL, in its own dialect")] = Engine.DUCKDB,
    var: Var = DEFAULT_VAR,
    *,
    job: TableOptions,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
) -> None:
    """Run SQL on the audit tables. Works while the job is running.

    Tables: operations, deliveries, commit_positions, order_info, rejected,
    consume_queue, owners, quality_results; their columns are in
    docs/tables.md.
    With one row per message: operations_by_message, deliveries_by_message.

    Only reads, and only these tables. With --engine spark the SQL is Spark's:
    FROM operations VERSION AS OF 3; DESCRIBE HISTORY operations lists versions.
    """
    from pipelines.cli.tables.query import run_query

    formats = {"--vertical": vertical, "--csv": as_csv, "--json": as_json, "--parquet": parquet is not None}
    if len(chosen := [name for name, is_chosen in formats.items() if is_chosen]) > 1:
        message = f"choose one of {' and '.join(chosen)}"
        raise Invalid(message)
    options = QueryOptions(
        engine=engine,
        var=var,
        versions=versions_by_table(version or []),
        at_ms=None if at is None else moment_ms(at),
        output=Output.CSV if as_csv else Output.JSON if as_json else Output.VERTICAL if vertical else Output.AUTO,
        rows_max=max_rows,
        parquet=parquet,
    )
    with job.opened() as tables:
        run_query(tables, sql, options)


@takes_options(job=StoryOptions)
def why(
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="TOPIC/QUEUE/OFFSET of a message; TOPIC/QUEUE with --lane")
    ],
    group: Annotated[str | None, typer.Option(help="show only what this group did with the message")] = None,
    message_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="the message with this id inside a unit; PLACE is its TOPIC, or TOPIC/QUEUE"),
    ] = None,
    lane: Annotated[str | None, typer.Option(metavar="GROUP", help="show what blocks this group's lane")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="draw the deliveries as SVG, too")] = None,
    *,
    job: StoryOptions,
    as_json: JsonOutput = False,
) -> None:
    """Show the history of a message, or what blocks a lane. Works while the job is running.

    popstream why orders/0/17: who wrote it, who held it from when until when,
    why it was redelivered, who acked it, and which position it moved.
    popstream why --lane billing orders/0: which message or limit the lane
    waits for. The tables are some seconds behind a running job.
    """
    from pipelines.cli.tables.message_place import lane_of, parsed_place

    found = job.place()
    if lane is None:
        from pipelines.cli.tables.why import run_why

        named = parsed_place(place)
        with job.opened() as tables:
            run_why(found, tables, named, message_id=message_id, group=group, as_json=as_json, plot=plot)
        return
    if unused := [
        name for name, given in (("--group", group), ("--message-id", message_id), ("--plot", plot)) if given
    ]:
        message = f"{unused[0]} cannot be used with --lane"
        raise Invalid(message)
    from pipelines.cli.tables.why_lane import run_why_lane

    wanted = lane_of(lane, place)
    with job.opened() as tables:
        run_why_lane(found, tables, wanted, as_json=as_json)


@takes_options(job=TableOptions)
def report(
    out: Annotated[Path, typer.Option(metavar="FILE", help="the file to write; one of this name is replaced")] = Path(
        "popstream-report.html"
    ),
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|DURATION",
            help="begin here: ISO 8601 (UTC if it names no zone), ms since 1970, or as in 2h before now",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME|DURATION", help="end here, in the same form as --since")
    ] = None,
    lane: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="GROUP TOPIC/QUEUE", help="draw the last leases of this lane, too"),
    ] = None,
    group: Annotated[str | None, typer.Option(help="only this group")] = None,
    topic: Annotated[str | None, typer.Option(help="only queues of this topic")] = None,
    *,
    job: TableOptions,
) -> None:
    """Write what happened as one HTML file. Works while the job is running.

    Throughput, latency, messages in flight and redeliveries over time, lanes
    by lag, slow and redelivered messages, dead letters, refusals and results
    of `check`. The file needs no network and no script.
    """
    from checkpoints.layout import JobFolder
    from pipelines.cli.tables.message_place import lane_of
    from pipelines.cli.tables.report import run_report
    from pipelines.report.report_data import Scope

    scope = Scope(
        since_ms=None if since is None else since_ms(since),
        until_ms=None if until is None else since_ms(until),
        group=group,
        topic=topic,
        lane=None if lane is None else lane_of(*lane),
    )
    with job.opened() as tables:
        run_report(JobFolder(job.load().folder, tables), scope, out)


@takes_options(job=FolderOptions)
def maintain(
    tables: Tables = None,
    var: Var = DEFAULT_VAR,
    *,
    job: FolderOptions,
    as_json: JsonOutput = False,
) -> None:
    """Compact the tables, and delete files that no version of the last week uses.

    First, delete the rows that are older than `audit_retention_days`.
    A running job does all this itself every `maintain_interval_s`.
    """
    from pipelines.cli.tables.maintain import run_maintain

    settings = job.load(tables=tables)
    run_maintain(settings.job_folder.absolute(), settings.audit_retention_days, var=var, as_json=as_json)


@takes_options(job=FolderOptions)
def erase(
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="erase texts that contain this")] = None,
    record: Annotated[
        str | None,
        typer.Option(metavar="PARTITION/OFFSET", help="erase the texts of this record of the ops topic"),
    ] = None,
    message: Annotated[
        str | None,
        typer.Option(metavar="TOPIC/QUEUE/OFFSET", help="erase what is said about this message: what handlers raised"),
    ] = None,
    tables: Tables = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count them")] = False,  # noqa: FBT002 - a flag
    *,
    job: FolderOptions,
    as_json: JsonOutput = False,
) -> None:
    """Erase texts of a person from the tables, also from old files. Works while the job is running.

    Rejected records quote what was sent, deliveries what handlers raised and why
    messages were rejected. Several options must all match. The rows stay, and checks
    hold. Says where else such texts are. A second run finds nothing.
    """
    from connectors.delta.erasure import Wanted
    from pipelines.cli.tables.erase import run_erase
    from pipelines.cli.tables.message_place import parsed_message, parsed_record

    wanted = Wanted(
        text=text,
        record=None if record is None else parsed_record(record),
        message=None if message is None else parsed_message(message),
    )
    run_erase(job.load(tables=tables), wanted, dry_run=dry_run, as_json=as_json)


@takes_options(job=TableOptions)
def check(
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="only the expectations of this table; repeat for several tables"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="last|TIME|DURATION",
            help="judge only the rows of dates that have changed since the `last` check that passed; or of the date of"
            " a time, as in 2030-01-31 or 36h, and later ones",
        ),
    ] = None,
    on_failure: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="run it if an expectation does not hold, with the failures as JSON input"),
    ] = None,
    late_after: Annotated[
        str,
        typer.Option(metavar="DURATION", help="records of the ops topic older than this must have their rows"),
    ] = "10m",
    bootstrap_servers: JobServers = None,
    kafka_config: KafkaConfig = None,
    prefix: JobPrefix = None,
    webhook: Annotated[
        str | None,
        typer.Option(metavar="URL", help="post the failures there, as JSON, if an expectation does not hold"),
    ] = None,
    data_docs: Annotated[
        Path, typer.Option(help="folder for Data Docs, new or theirs; each run replaces its contents")
    ] = DEFAULT_DATA_DOCS,
    context: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="use this file context of Great Expectations, a copy of ours with more in it"
        ),
    ] = None,
    *,
    job: TableOptions,
    as_json: JsonOutput = False,
) -> None:
    """Check the audit tables against the expectations. Exit code 1: one does not hold.

    A daily `popstream check --since last` reads the day. The expectations are
    those of a file context of Great Expectations, which you may copy and
    extend: docs/quality.md. The tables are compared with the running job and
    with Kafka's log, also where no job runs but --bootstrap-servers is given.
    """
    from pipelines.cli.tables.check_tables import CheckOptions, run_check

    options = CheckOptions(
        tables=tuple(table or ()),
        since=since,
        context=context,
        data_docs=data_docs,
        late_after_ms=duration_ms(late_after),
        on_failure=on_failure,
        webhook=webhook,
    )
    settings = job.load(bootstrap_servers=bootstrap_servers, kafka_config=kafka_config, topic_prefix=prefix)
    with job.opened() as tables:
        run_check(settings, tables, options, as_json=as_json, is_copy=job.is_at_url)
