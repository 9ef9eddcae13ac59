"""The commands and their options. Each imports what it needs when it is called: `--help` starts no Spark."""

# ruff: noqa: PLC0415 - so that `popstream --help` takes a moment and not ten
import signal
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.exits import EPILOG, Group
from pipelines.cli.history import history
from pipelines.cli.options import (
    Duration,
    Folder,
    HistoryFile,
    JobPrefix,
    JobServers,
    JsonOutput,
    Prefix,
    Servers,
    SettingsFile,
    Snapshots,
    Var,
    load_settings,
    meaning,
)
from pipelines.process.logs import configure_logs
from popstream.wire.failures import Invalid

__all__ = ["app", "main"]

app = typer.Typer(
    name="popstream",
    cls=Group,
    help="RocketMQ's POP consumption on Kafka topics, decided by a streaming job, with a history in Delta tables.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(history)

DEFAULT_VAR = Path("var")
DEFAULT_DATA_DOCS = Path("var/data_docs")
HALF_A_MINUTE = Duration(30_000)
A_MOMENT = Duration(3_000)
Topic = Annotated[str, typer.Argument(help="message topic", metavar="TOPIC")]


@app.callback()
def show_version(
    _: Annotated[bool, typer.Option("--version", help="print the version and exit", is_eager=True)] = False,  # noqa: FBT002 - an option
) -> None:
    """Kept for `--help`: the entry answers `--version` before anything is imported."""


@app.command(epilog=EPILOG)
def up(
    folder: Folder = None,
    bootstrap_servers: JobServers = None,
    prefix: JobPrefix = None,
    ops_partitions: Annotated[int | None, typer.Option(help=meaning("ops_partitions"))] = None,
    results_partitions: Annotated[int | None, typer.Option(help=meaning("results_partitions"))] = None,
    message_topics: Annotated[
        str | None, typer.Option(help=meaning("message_topics"), metavar="NAME,...", show_default=False)
    ] = None,
    records_per_batch_max: Annotated[int | None, typer.Option(help=meaning("records_per_batch_max"))] = None,
    flush_interval: Annotated[
        Duration | None,
        typer.Option(parser=Duration.parse, metavar="DURATION", help=meaning("flush_interval_s")),
    ] = None,
    driver_memory: Annotated[str | None, typer.Option(help=meaning("driver_memory"))] = None,
    metrics_port: Annotated[int | None, typer.Option(help=meaning("metrics_port"))] = None,
    metrics_host: Annotated[
        str, typer.Option(help="address that metrics are served on", envvar="POPSTREAM_METRICS_HOST")
    ] = "127.0.0.1",
    kafka_port: Annotated[
        int,
        typer.Option(help="port of the embedded Kafka; 0: any", envvar="POPSTREAM_KAFKA_PORT", min=0, max=65535),
    ] = 0,
    log_level: Annotated[str | None, typer.Option(help=meaning("log_level"))] = None,
    log_to_terminal: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--log-to-terminal", help="log to standard error instead of job.log in the folder")
    ] = False,
    settings: SettingsFile = None,
    var: Var = DEFAULT_VAR,
) -> None:
    """Run the job in the foreground, with a Kafka of its own unless one is given.

    Every setting may also come from its variable or from the settings file.
    Other commands find the running job by its folder.
    """
    chosen = load_settings(
        settings,
        folder=folder,
        bootstrap_servers=bootstrap_servers,
        topic_prefix=prefix,
        ops_partitions=ops_partitions,
        results_partitions=results_partitions,
        message_topics=message_topics,
        records_per_batch_max=records_per_batch_max,
        flush_interval_s=None if flush_interval is None else flush_interval / 1000,
        driver_memory=driver_memory,
        metrics_port=metrics_port,
        log_level=log_level,
    )
    from pipelines.cli.up import run_up

    run_up(chosen, var=var, kafka_port=kafka_port, metrics_host=metrics_host, log_to_terminal=log_to_terminal)


@app.command(epilog=EPILOG)
def demo(
    count: Annotated[int, typer.Option(help="messages to send", min=1)] = 100_000,
    messages: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="send the lines of this file instead", exists=True, dir_okay=False),
    ] = None,
    queues: Annotated[int, typer.Option(help="queues of the message topic", min=1, max=1024)] = 8,
    groups: Annotated[int, typer.Option(help="consumer groups; each gets every message", min=1)] = 3,
    bootstrap_servers: Annotated[
        str,
        typer.Option(help="an existing Kafka; without: an embedded one", metavar="HOST:PORT,...", show_default=False),
    ] = "",
    var: Var = DEFAULT_VAR,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Run the whole pipeline once on this machine, and tell what happened.

    Exit code 1: a check of the demo failed; 130: interrupted.
    """
    from pipelines.demo import run_demo

    code = run_demo(
        messages_count=count,
        messages_file=messages,
        queues=queues,
        groups=groups,
        var=var,
        bootstrap_servers=bootstrap_servers,
        json_output=as_json,
    )
    raise typer.Exit(code)


@app.command(epilog=EPILOG)
def ops(
    operation: Annotated[
        str | None, typer.Argument(help="an operation as JSON; - or nothing: from standard input, one a line")
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="print an operation of this type to start from (all: one of each)"),
    ] = None,
    timeout: Annotated[
        Duration, typer.Option(parser=Duration.parse, metavar="DURATION", help="how long to wait for the answer")
    ] = HALF_A_MINUTE,
    folder: Folder = None,
    bootstrap_servers: Servers = None,
    prefix: Prefix = None,
    history_file: HistoryFile = None,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Send an operation to the job and show its answer.

    `v`, `op_id` and `reply_to` are filled in. Exit code 1: one was refused as a whole.

    popstream ops --example pop | popstream ops --json
    """
    from pipelines.cli.ops import EXAMPLES, example_lines, read_operations, read_text, run_ops
    from pipelines.cli.target import find_target

    if example is not None:
        if example not in {*EXAMPLES, "all"}:
            message = f"there is no type {example!r}, only {', '.join(EXAMPLES)}"
            raise typer.BadParameter(message, param_hint="--example")
        print("\n".join(example_lines(example)))
        return
    commands = read_operations(read_text(operation))
    run_ops(
        find_target(folder, bootstrap_servers, prefix, history_file), commands, timeout_ms=int(timeout), as_json=as_json
    )


@app.command(epilog=EPILOG)
def send(
    topic: Topic,
    file: Annotated[Path | None, typer.Argument(help="one message a line; - or nothing: standard input")] = None,
    queue: Annotated[int | None, typer.Option(help="queue to send to; by default they take turns", min=0)] = None,
    tag: Annotated[str | None, typer.Option(help="tag of the messages")] = None,
    create: Annotated[int, typer.Option(metavar="QUEUES", help="make the topic, with so many queues", min=0)] = 0,
    folder: Folder = None,
    bootstrap_servers: Servers = None,
    prefix: Prefix = None,
    history_file: HistoryFile = None,
) -> None:
    """Send one message a line, and wait until they can be popped."""
    from pipelines.cli.messages import run_send
    from pipelines.cli.target import find_target

    target = find_target(folder, bootstrap_servers, prefix, history_file)
    run_send(target, topic, file, queue_id=queue, tag=tag, create=create)


@app.command(epilog=EPILOG)
def consume(
    topic: Topic,
    group: Annotated[str, typer.Option(help="consumer group")],
    count_max: Annotated[int, typer.Option("--max", metavar="N", help="stop after so many; 0: no limit", min=0)] = 0,
    invisible_time: Annotated[
        Duration,
        typer.Option(parser=Duration.parse, metavar="DURATION", help="nobody else gets a message for so long"),
    ] = HALF_A_MINUTE,
    wait: Annotated[
        Duration,
        typer.Option(parser=Duration.parse, metavar="DURATION", help="stop when nothing has come for so long"),
    ] = A_MOMENT,
    follow: Annotated[bool, typer.Option("--follow", help="do not stop when nothing comes")] = False,  # noqa: FBT002
    no_ack: Annotated[  # noqa: FBT002
        bool, typer.Option("--no-ack", help="leave the messages leased: they come again when the time is over")
    ] = False,
    folder: Folder = None,
    bootstrap_servers: Servers = None,
    prefix: Prefix = None,
    history_file: HistoryFile = None,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Pop messages from all queues of a topic by turns, print one a line, and ack them."""
    from pipelines.cli.messages import run_consume
    from pipelines.cli.target import find_target

    run_consume(
        find_target(folder, bootstrap_servers, prefix, history_file),
        topic,
        group,
        count_max=count_max,
        invisible_time_ms=int(invisible_time),
        wait_ms=int(wait),
        follow=follow,
        ack=not no_ack,
        as_json=as_json,
    )


@app.command(epilog=EPILOG)
def release(
    topics: Annotated[list[str], typer.Argument(help="message topics", metavar="TOPIC...")],
    client: Annotated[str, typer.Option(help="client id of the consumer that is dead")],
    group: Annotated[str, typer.Option(help="consumer group")],
    timeout: Annotated[
        Duration, typer.Option(parser=Duration.parse, metavar="DURATION", help="how long to wait for the answers")
    ] = HALF_A_MINUTE,
    folder: Folder = None,
    bootstrap_servers: Servers = None,
    prefix: Prefix = None,
    history_file: HistoryFile = None,
) -> None:
    """Give back at once what a consumer held whose process was killed.

    Without this its leases end by themselves. A consumer that starts
    with the same client id does it by itself.
    """
    from pipelines.cli.release import run_release
    from pipelines.cli.target import find_target

    run_release(
        find_target(folder, bootstrap_servers, prefix, history_file), topics, group, client, timeout_ms=int(timeout)
    )


@app.command(epilog=EPILOG)
def status(
    lane: Annotated[str | None, typer.Option(metavar="GROUP", help="lanes of this group only")] = None,
    topic: Annotated[str | None, typer.Option(help="queues of this topic only")] = None,
    limit: Annotated[int, typer.Option(help="show at most so many lanes", min=1)] = 1000,
    ready: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--ready", help="only tell whether the job decides and delivers; exit code 3 if not")
    ] = False,
    folder: Folder = None,
    settings: SettingsFile = None,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Show how the job does: totals, queues and lanes.

    Without a running job the state that the last one left is shown, with exit code 3.
    """
    from checkpoints.layout import JobFolder
    from pipelines.cli.status import run_ready, run_status
    from pipelines.control.messages import StatusRequest

    root = load_settings(settings, folder=folder).folder
    if ready:
        run_ready(JobFolder(root))
    else:
        run_status(JobFolder(root), StatusRequest(group=lane, topic=topic, limit=limit), as_json=as_json)


@app.command(epilog=EPILOG)
def queue(
    topic: Topic,
    queue_id: Annotated[int | None, typer.Option("--queue", help="only this one", min=0)] = None,
    offset: Annotated[int | None, typer.Option(help="show the unit at or after this queue offset", min=0)] = None,
    message: Annotated[int | None, typer.Option(help="show the unit with this message offset", min=0)] = None,
    time: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="show the first unit since then, and the last until then")
    ] = None,
    key: Annotated[str | None, typer.Option(help="show the newest units with this key or message id")] = None,
    limit: Annotated[int, typer.Option(help="units with a key, and runs of holes, at most", min=1, max=1000)] = 10,
    rebuild_from: Annotated[
        int | None, typer.Option(metavar="OFFSET", help="forget --queue from here on, and read it anew", min=0)
    ] = None,
    folder: Folder = None,
    settings: SettingsFile = None,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Show how far the queues of a topic are built, what they lack, and single units of them.

    Without a running job what the last one left is shown, with exit code 3.
    """
    from checkpoints.layout import JobFolder
    from pipelines.build_consume_queue.view import QueueRequest
    from pipelines.cli.queue import moment_ms, run_queue, run_rebuild
    from popstream.wire.key_hash import key_hash

    job = JobFolder(load_settings(settings, folder=folder).folder)
    if rebuild_from is not None:
        run_rebuild(job, topic, queue_id, rebuild_from)
        return
    request = QueueRequest(
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        message_offset=message,
        time_ms=None if time is None else moment_ms(time),
        key_hash=None if key is None else key_hash(key.encode()),
        limit=limit,
    )
    run_queue(job, request, as_json=as_json)


@app.command(epilog=EPILOG)
def query(
    sql: Annotated[str, typer.Argument(help="one SELECT, DESCRIBE, SHOW or EXPLAIN statement")],
    folder: Folder = None,
    max_rows: Annotated[int, typer.Option(help="print at most so many rows; 0: all", min=0)] = 1000,
    as_csv: Annotated[bool, typer.Option("--csv", help="comma-separated, with a header")] = False,  # noqa: FBT002
    settings: SettingsFile = None,
    var: Var = DEFAULT_VAR,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="one object a line")] = False,
) -> None:
    """Run SQL over the audit tables, also while the job runs.

    Tables: operations, deliveries, commit_positions, order_info, rejected,
    consume_queue, quality_results.
    With a row for each message: operations_by_message, deliveries_by_message.

    Time travel: SELECT count(*) FROM operations VERSION AS OF 3
    or TIMESTAMP AS OF '2030-01-31 12:00'; DESCRIBE HISTORY operations
    tells the versions. By path: FROM delta.`/a/folder/delta/operations`.
    """
    from checkpoints.layout import JobFolder
    from pipelines.cli.query import Output, run_query

    if as_csv and as_json:
        message = "choose one of --csv and --json"
        raise Invalid(message)
    output = Output.CSV if as_csv else Output.JSON if as_json else Output.TABLE
    root = load_settings(settings, folder=folder).folder
    run_query(JobFolder(root).delta, sql, var=var, output=output, rows_max=max_rows)


@app.command(epilog=EPILOG)
def maintain(
    folder: Folder = None,
    settings: SettingsFile = None,
    var: Var = DEFAULT_VAR,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Compact the tables, and remove the files that no version of the last week has.

    A running job does it every `maintain_interval_s` by itself.
    """
    from checkpoints.layout import JobFolder
    from pipelines.cli.maintain import run_maintain

    root = load_settings(settings, folder=folder).folder
    run_maintain(JobFolder(root.absolute()), var=var, as_json=as_json)


@app.command(epilog=EPILOG)
def snapshot(
    listed: Annotated[bool, typer.Option("--list", help="take none, and tell which there are")] = False,  # noqa: FBT002
    to: Snapshots = None,
    folder: Folder = None,
    settings: SettingsFile = None,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Keep the state as it is now, also while the job runs.

    A running job keeps it where its own settings say.
    """
    from pipelines.cli.snapshot import run_list, run_snapshot

    chosen = load_settings(settings, folder=folder, snapshots=to)
    (run_list if listed else run_snapshot)(chosen, as_json=as_json)


@app.command(epilog=EPILOG)
def restore(
    lossy: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--lossy", help="give up what cannot be had any more; it says what that is")
    ] = False,
    only: Annotated[str | None, typer.Option("--snapshot", metavar="ID", help="take this one and no other")] = None,
    at: Snapshots = None,
    folder: Folder = None,
    bootstrap_servers: JobServers = None,
    prefix: JobPrefix = None,
    settings: SettingsFile = None,
    var: Var = DEFAULT_VAR,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Put the best state in place of one that is lost or contradicts log and tables.

    Tried in this order: the present state, snapshots from the newest on,
    an empty state, what earlier restores have put aside. The job must not
    run; what lay there is kept. The next
    `popstream up` decides the rest of the log again, and compares what
    comes of it with the rows that are in Delta already.
    """
    from pipelines.cli.restore import run_restore

    chosen = load_settings(
        settings, folder=folder, bootstrap_servers=bootstrap_servers, topic_prefix=prefix, snapshots=at
    )
    run_restore(chosen, var=var, lossy=lossy, only=only, as_json=as_json)


@app.command(epilog=EPILOG)
def verify(
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="ID", help="decide from this snapshot on, or from the `newest`"),
    ] = None,
    at: Snapshots = None,
    folder: Folder = None,
    bootstrap_servers: JobServers = None,
    prefix: JobPrefix = None,
    settings: SettingsFile = None,
    var: Var = DEFAULT_VAR,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Decide the log again, and compare state and tables with what comes of it.

    From the begin of the log, or from the oldest snapshot that it reaches
    back to. Exit code 4: something differs.
    """
    from pipelines.cli.verify import run_verify

    chosen = load_settings(
        settings, folder=folder, bootstrap_servers=bootstrap_servers, topic_prefix=prefix, snapshots=at
    )
    run_verify(chosen, var=var, since=since, as_json=as_json)


@app.command(epilog=EPILOG)
def check(
    folder: Folder = None,
    data_docs: Annotated[Path, typer.Option(help="folder for Data Docs; a run replaces them")] = DEFAULT_DATA_DOCS,
    settings: SettingsFile = None,
    var: Var = DEFAULT_VAR,
    *,
    as_json: JsonOutput = False,
) -> None:
    """Check the audit tables against the expectations; exit code 1 when one does not hold."""
    from checkpoints.layout import JobFolder
    from pipelines.cli.check import run_check

    root = load_settings(settings, folder=folder).folder
    run_check(JobFolder(root).delta, var=var, data_docs=data_docs, as_json=as_json)


def main() -> None:
    """Entry of `popstream`."""
    # A SIGTERM unwinds like Ctrl-C, so that every command closes what it has open.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Standard output is for what was asked for; `up` has its own log.
    configure_logs("warning")
    app()
