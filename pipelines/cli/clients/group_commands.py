"""The commands `popstream policy` and `popstream group list`, `policy`, `reset` and `forget`."""

# ruff: noqa: PLC0415 - so that `--help` imports little
from typing import Annotated

import typer

from pipelines.cli.exits import EPILOG, command_group
from pipelines.cli.options import (
    AdminKeyFile,
    JobOptions,
    JsonOutput,
    PolicyOptions,
    QueuePolicyOptions,
    Topic,
    takes_options,
)

__all__ = ["group", "policy"]

group = command_group("group", "List the consumer groups of a job, set their policies, move and delete them.")

GroupName = Annotated[str, typer.Argument(help="consumer group", metavar="GROUP")]


@group.command("list", epilog=EPILOG)
@takes_options(job=JobOptions)
def list_groups(
    topic: Annotated[str | None, typer.Argument(help="only groups of this topic", metavar="TOPIC")] = None,
    *,
    job: JobOptions,
    as_json: JsonOutput = False,
) -> None:
    """Show the groups of each topic: their lanes, one for each queue that they have popped, and how far these lag.

    If no job runs, shows the stored groups, and exits with code 3.
    """
    from pipelines.cli.clients.groups import run_list

    run_list(job.place(), topic, as_json=as_json)


@group.command("policy", epilog=EPILOG)
@takes_options(rules=PolicyOptions, job=JobOptions)
def group_policy(
    group_name: GroupName,
    topics: Annotated[list[str], typer.Argument(help="message topics", metavar="TOPIC...")],
    rules: PolicyOptions,
    new_group: Annotated[  # noqa: FBT002
        bool, typer.Option("--new-group", help="do not ask or warn if the group has never popped the topic")
    ] = False,
    admin_key_file: AdminKeyFile = None,
    *,
    job: JobOptions,
    as_json: JsonOutput = False,
) -> None:
    """Set the policy of a group in all queues of topics, whatever its consumers declare; without limits, show it.

    All limits apply per queue. The policy replaces the one before as a whole;
    `group forget` ends it, with the positions of the group. A queue that is
    added later has none.

    popstream group policy billing orders --max-attempts 5 --back-off 1s,10s,5m
    """
    from pipelines.cli.clients.policies import run_policy, run_show_policies

    fields = rules.rules()
    place = job.place()
    if fields is None:
        run_show_policies(place, topics, group_name, as_json=as_json)
    else:
        run_policy(place, group_name, topics, is_new=new_group, admin_key_file=admin_key_file, **fields)


@takes_options(rules=QueuePolicyOptions, job=JobOptions)
def policy(
    topics: Annotated[list[str], typer.Argument(help="message topics", metavar="TOPIC...")],
    rules: QueuePolicyOptions,
    admin_key_file: AdminKeyFile = None,
    *,
    job: JobOptions,
    as_json: JsonOutput = False,
) -> None:
    """Show the limits of topics: of each queue, group and client. With limits, set those of all their queues.

    All limits apply per queue. Those of groups and clients hold for groups
    without a policy of their own, which `group policy` sets. The policy
    replaces the one before as a whole. A queue that is added later has none.

    popstream policy orders --max-attempts 0 --client-pops-per-s-max 50 --new-lanes-per-min-max 10
    """
    from pipelines.cli.clients.policies import run_policy, run_show_policies

    fields = rules.rules()
    place = job.place()
    if fields is None:
        run_show_policies(place, topics, None, as_json=as_json)
    else:
        run_policy(place, None, topics, is_new=True, admin_key_file=admin_key_file, **fields)


@group.command(epilog=EPILOG)
@takes_options(job=JobOptions)
def reset(
    group_name: GroupName,
    topic: Topic,
    to: Annotated[str, typer.Option(metavar="PLACE", help="earliest, latest, or with --queue a queue offset")],
    queue_id: Annotated[int | None, typer.Option("--queue", help="only this queue", min=0)] = None,
    admin_key_file: AdminKeyFile = None,
    *,
    job: JobOptions,
) -> None:
    """Move a group to another offset of a topic.

    Its leases there end: acks of messages it received earlier are refused,
    and the messages from that offset on are delivered again.
    """
    from pipelines.cli.clients.groups import run_reset

    run_reset(job.place(), group_name, topic, to, queue_id, admin_key_file)


@group.command(epilog=EPILOG)
@takes_options(job=JobOptions)
def forget(
    group_name: GroupName,
    topics: Annotated[
        list[str] | None, typer.Argument(help="message topics; by default all", metavar="TOPIC...")
    ] = None,
    admin_key_file: AdminKeyFile = None,
    *,
    job: JobOptions,
) -> None:
    """Delete a group: its positions, its leases and its policies.

    If it pops again, it begins as a new group.
    """
    from pipelines.cli.clients.groups import run_forget

    run_forget(job.place(), group_name, topics or (), admin_key_file)
