"""The commands `popstream group list`, `reset` and `forget`."""

# ruff: noqa: PLC0415 - so that `--help` imports little
from typing import Annotated

import typer

from pipelines.cli.exits import EPILOG, command_group
from pipelines.cli.options import JobOptions, JsonOutput, Topic, with_options

__all__ = ["group"]

group = command_group("group", "List the consumer groups of a job, move them to other offsets, and delete them.")

GroupName = Annotated[str, typer.Argument(help="consumer group", metavar="GROUP")]


@group.command("list", epilog=EPILOG)
@with_options(job=JobOptions)
def list_groups(
    topic: Annotated[str | None, typer.Argument(help="only groups of this topic", metavar="TOPIC")] = None,
    *,
    job: JobOptions,
    as_json: JsonOutput = False,
) -> None:
    """Show the groups of each topic: their lanes, one for each queue that they have popped, and how far these lag.

    If no job runs, shows the stored groups, and exits with code 3.
    """
    from checkpoints.layout import JobFolder
    from pipelines.cli.clients.groups import run_list

    run_list(JobFolder(job.load().folder), topic, as_json=as_json)


@group.command(epilog=EPILOG)
@with_options(job=JobOptions)
def reset(
    group_name: GroupName,
    topic: Topic,
    to: Annotated[str, typer.Option(metavar="PLACE", help="earliest, latest, or with --queue a queue offset")],
    queue_id: Annotated[int | None, typer.Option("--queue", help="only this queue", min=0)] = None,
    *,
    job: JobOptions,
) -> None:
    """Let a group continue at another offset of a topic.

    Its leases there end: acks of messages that it has got before are
    refused, and the messages from that offset on are delivered again.
    """
    from checkpoints.layout import JobFolder
    from pipelines.cli.clients.groups import run_reset

    run_reset(JobFolder(job.load().folder), group_name, topic, to, queue_id)


@group.command(epilog=EPILOG)
@with_options(job=JobOptions)
def forget(
    group_name: GroupName,
    topics: Annotated[
        list[str] | None, typer.Argument(help="message topics; by default all", metavar="TOPIC...")
    ] = None,
    *,
    job: JobOptions,
) -> None:
    """Delete a group: its positions, its leases and its policies.

    If it pops again, it begins as a new group.
    """
    from checkpoints.layout import JobFolder
    from pipelines.cli.clients.groups import run_forget

    run_forget(JobFolder(job.load().folder), group_name, topics or ())
