"""The commands on the state of a job: `status`, `queue`, `snapshot`, `restore` and `verify`."""

# ruff: noqa: PLC0415 - so that `popstream --help` takes a moment and not ten seconds
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import (
    DEFAULT_VAR,
    JobOptions,
    JsonOutput,
    ReadCheckpoint,
    RecoveryOptions,
    Topic,
    Var,
    takes_options,
)
from pipelines.cli.time_options import moment_ms
from pipelines.printed_commands import remembered
from popstream.wire.base_errors import Invalid

__all__ = ["queue", "restore", "snapshot", "status", "verify"]


@takes_options(job=JobOptions)
def status(
    lane: Annotated[str | None, typer.Option(metavar="GROUP", help="lanes of this group only")] = None,
    topic: Annotated[str | None, typer.Option(help="queues of this topic only")] = None,
    limit: Annotated[int, typer.Option(help="maximum number of lanes to show", min=1)] = 1000,
    ready: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--ready", help="only report whether the job decides and delivers; exit code 3 if not")
    ] = False,
    checkpoint: ReadCheckpoint = None,
    var: Var = DEFAULT_VAR,
    *,
    job: JobOptions,
    as_json: JsonOutput = False,
) -> None:
    """Show job status: totals, queues and lanes.

    If no job runs, shows the stored state, and exits with code 3. With
    --checkpoint it reads what a job on a cluster has committed; use --api for
    the driver's in-memory state.
    """
    from pipelines.control.messages import StatusRequest

    if ready and as_json:
        message = "--ready cannot be used with --json: its exit code is the answer"
        raise Invalid(message)
    request = StatusRequest(group=lane, topic=topic, limit=limit)
    if checkpoint is not None:
        from pipelines.cli.cluster.read_checkpoint import run_status_of_checkpoint

        run_status_of_checkpoint(job.load(), checkpoint, request, only_ready=ready, var=var, as_json=as_json)
        return
    from pipelines.cli.state.status import run_ready, run_status

    place = job.place()
    if ready:
        run_ready(place)
    else:
        run_status(place, request, as_json=as_json)


@takes_options(job=JobOptions)
def queue(
    topic: Topic,
    queue_id: Annotated[int | None, typer.Option("--queue", help="only this queue", min=0)] = None,
    offset: Annotated[int | None, typer.Option(help="show the unit at or after this queue offset", min=0)] = None,
    message: Annotated[int | None, typer.Option(help="show the unit with this message offset", min=0)] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT", help="show the first unit at or after this time, and the last one at or before it"
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="show the newest units with this key, or that carry a message with this key or message id; the message"
            " ids of plain records are not indexed"
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(help="maximum number of units (with --key) and of runs of holes", min=1, max=1000)
    ] = 10,
    rebuild_from: Annotated[
        int | None, typer.Option(metavar="OFFSET", help="forget --queue from this offset on, and read it again", min=0)
    ] = None,
    checkpoint: ReadCheckpoint = None,
    var: Var = DEFAULT_VAR,
    *,
    job: JobOptions,
    as_json: JsonOutput = False,
) -> None:
    """Show how far the queues of a topic are built, their holes, and single units.

    If no job runs, shows the stored queues, and exits with code 3. With
    --checkpoint it reads what a job on a cluster has committed.
    """
    from pipelines.build_consume_queue.queue_view import QueueRequest
    from pipelines.cli.state.queue import run_queue, run_rebuild
    from popstream.wire.key_hash import key_hash

    if rebuild_from is not None:
        if as_json:
            raise Invalid("--rebuild-from cannot be used with --json: it shows nothing of the queue")
        if checkpoint is not None:
            raise Invalid("a job on a cluster cannot rebuild one queue, only all: start it with a new --checkpoint")
        run_rebuild(job.place(), topic, queue_id, rebuild_from)
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
    if checkpoint is not None:
        from pipelines.cli.cluster.read_checkpoint import run_queue_of_checkpoint

        run_queue_of_checkpoint(job.load(), checkpoint, request, var=var, as_json=as_json)
        return
    run_queue(job.place(), request, as_json=as_json)


@takes_options(job=RecoveryOptions)
def snapshot(
    listed: Annotated[bool, typer.Option("--list", help="list the snapshots instead of taking one")] = False,  # noqa: FBT002
    checkpoint: ReadCheckpoint = None,
    var: Var = DEFAULT_VAR,
    *,
    job: RecoveryOptions,
    as_json: JsonOutput = False,
) -> None:
    """Take a snapshot of the state. Works while the job is running.

    A running job stores it where its own settings say. A job on a cluster
    (--checkpoint) has to be stopped.
    """
    if checkpoint is not None and not listed:
        from pipelines.cli.cluster.snapshot_of_checkpoint import run_snapshot_of_checkpoint

        run_snapshot_of_checkpoint(job.load(on_cluster=True), checkpoint, var=var, as_json=as_json)
        return
    from pipelines.cli.state.snapshot import run_list, run_snapshot

    (run_list if listed else run_snapshot)(job.load(), as_json=as_json)


@takes_options(job=RecoveryOptions)
def restore(
    lossy: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option(
            "--lossy",
            help="accept losses when every candidate has some; they are reported",
            callback=remembered("--lossy"),
        ),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            metavar="ID",
            help="use this snapshot only, or `none`: decide the log again from its start",
            callback=remembered("--snapshot"),
        ),
    ] = None,
    rebuild: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="move this damaged table to replaced/; its rows are computed again"),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="URL",
            help="not possible on a cluster: prints the commands to use instead, and exits with code 2",
            show_default=False,
            callback=remembered("--checkpoint"),
        ),
    ] = None,
    var: Var = DEFAULT_VAR,
    *,
    job: RecoveryOptions,
    as_json: JsonOutput = False,
) -> None:
    """Replace a state that is lost, or contradicts log and tables, with the best candidate.

    Stop the job first. Candidates in order: the present state, snapshots from
    the newest to the oldest, an empty state, states that earlier restores
    replaced. The old state is kept. The next `popstream up` decides the rest of
    the log again, and compares the resulting rows with those in Delta.
    """
    if checkpoint is not None:
        from pipelines.cli.cluster.new_checkpoint import in_new_checkpoint
        from pipelines.cli.job_sources import snapshots_of
        from pipelines.recovery.candidates import NO_SNAPSHOT

        kept = [snapshot.id for snapshot in snapshots_of(job.load(on_cluster=True)).list()]
        chosen = next(iter(kept), None) if only is None else only
        how = in_new_checkpoint(None if chosen == NO_SNAPSHOT else chosen)
        message = f"a job on a cluster is not restored in place: {how}"
        raise Invalid(message)
    from pipelines.cli.state.restore_state import run_restore

    run_restore(job.load(), var=var, lossy=lossy, only=only, rebuild=rebuild or [], as_json=as_json)


@takes_options(job=RecoveryOptions)
def verify(
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="ID", help="start from this snapshot, or from the `newest`"),
    ] = None,
    fresh: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--fresh", help="start anew, although a verification was stopped half-way")
    ] = False,
    no_messages: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option("--no-messages", help="do not read the message topics", callback=remembered("--no-messages")),
    ] = False,
    work: Annotated[
        Path | None,
        typer.Option(
            "--work",
            help="folder for what is decided again",
            show_default="verify/ in the job's folder",
            callback=remembered("--work"),
        ),
    ] = None,
    checkpoint: ReadCheckpoint = None,
    var: Var = DEFAULT_VAR,
    *,
    job: RecoveryOptions,
    as_json: JsonOutput = False,
) -> None:
    """Decide the log again, and compare state and tables with the result.

    Starts at the beginning of the log, or at the oldest snapshot from which
    the log is complete. Units of consume queues are compared with their table
    and with the message topics. If it is stopped, the same command goes on.
    Exit code 4: something differs; 3: it did not come to an end. A job on a
    cluster (--checkpoint) has to be stopped until its state is copied.
    """
    from pipelines.cli.state.verify_state import VerifyOptions, run_verify

    options = VerifyOptions(since=since, fresh=fresh, with_messages=not no_messages, work=work, as_json=as_json)
    if checkpoint is None:
        run_verify(job.load(), options, var=var)
        return
    from pipelines.cli.cluster.verify_checkpoint import run_verify_checkpoint

    run_verify_checkpoint(job.load(on_cluster=True), checkpoint, job.tables, options, var=var)
