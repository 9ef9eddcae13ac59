"""The commands `popstream group list`, `policy`, `reset` and `forget`."""

# ruff: noqa: PLC0415 - so that `--help` imports little
from typing import Annotated

import typer

from pipelines.cli.exits import EPILOG, command_group
from pipelines.cli.options import JobOptions, JsonOutput, Topic, durations_ms, with_options
from popstream.wire.limits import ATTEMPTS_MAX, IN_FLIGHT_MAX, PARKED_DEFAULT, PARKED_MAX, QUOTA_MAX

__all__ = ["group"]

group = command_group("group", "List the consumer groups of a job, set their policies, move and delete them.")

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
def policy(
    group_name: GroupName,
    topics: Annotated[list[str], typer.Argument(help="message topics", metavar="TOPIC...")],
    max_attempts: Annotated[
        int,
        typer.Option(help="deliveries of a message before it is a dead letter; 0: no limit", max=ATTEMPTS_MAX, min=0),
    ],
    back_off: Annotated[
        str,
        typer.Option(
            metavar="DURATION,...",
            help="time after the first, second, ... failed delivery, of which the last one repeats; by default none",
            show_default=False,
        ),
    ] = "",
    parked_max: Annotated[int, typer.Option(help="pops that wait", min=0, max=PARKED_MAX)] = PARKED_DEFAULT,
    in_flight_max: Annotated[int, typer.Option(help="leased messages; 0: no limit", min=0, max=IN_FLIGHT_MAX)] = 0,
    pops_per_s_max: Annotated[int, typer.Option(help="pops in a second; 0: no limit", min=0, max=QUOTA_MAX)] = 0,
    client_pops_per_s_max: Annotated[
        int, typer.Option(help="the same of one client; 0: no limit", min=0, max=QUOTA_MAX)
    ] = 0,
    client_parked_max: Annotated[
        int, typer.Option(help="pops of one client that wait; 0: no limit", min=0, max=PARKED_MAX)
    ] = 0,
    new_group: Annotated[  # noqa: FBT002
        bool, typer.Option("--new-group", help="do not ask or warn if the group has never popped the topic")
    ] = False,
    *,
    job: JobOptions,
) -> None:
    """Set the policy of a group in all queues of topics, whatever its consumers declare.

    All numbers are of each queue. The policy replaces the one before as a whole; `group forget` ends it, with the
    positions of the group. A queue that is added later has none.

    popstream group policy billing orders --max-attempts 5 --back-off 1s,10s,5m
    """
    from checkpoints.layout import JobFolder
    from pipelines.cli.clients.groups import run_policy

    run_policy(
        JobFolder(job.load().folder),
        group_name,
        topics,
        is_new=new_group,
        max_attempts=max_attempts,
        back_off_ms=durations_ms(back_off),
        parked_max=parked_max,
        in_flight_max=in_flight_max,
        pops_per_s_max=pops_per_s_max,
        client_pops_per_s_max=client_pops_per_s_max,
        client_parked_max=client_parked_max,
    )


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
