"""`popstream group`: list the consumer groups, reset and forget them. And: is a group new to a topic?"""

import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from pipelines.cli.exits import Exit, say
from pipelines.cli.number_text import is_offset
from pipelines.cli.printing import counted, standard_output
from pipelines.cli.state.status import status_of
from pipelines.cli.target import JobPlace, Target, end_without_job, require_running_job
from pipelines.control.client import ask
from pipelines.control.job_file import JobFile
from pipelines.control.lane_views import QueueView
from pipelines.control.messages import Status, StatusRequest
from pipelines.printed_commands import completed_commands
from popstream import Refused, Transport
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import Command, ForgetLane, ResetOffset
from popstream.wire.reason import Reason

__all__ = ["confirm_new_group", "queues_of", "run_forget", "run_list", "run_reset", "send_all"]

ALL_LANES = 1_000_000
PLACES: dict[str, Callable[[QueueView], int]] = {
    "earliest": lambda queue: queue.min_offset,
    "latest": lambda queue: queue.commit_position,
}


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group in one topic: the sums over its lanes."""

    topic: str
    group: str
    lanes: int
    lag: int
    leased: int
    available: int
    dead_lettered: int


def run_list(place: JobPlace, topic: str | None, *, as_json: bool) -> None:
    """Print the groups of the running job, or of the stored state.

    Raises:
        Unavailable: There is neither job nor state, or the job does not answer.
        typer.Exit: No job runs; the stored groups were printed.
    """
    status = status_of(place, StatusRequest(topic=topic, limit=ALL_LANES))
    groups = _groups_in(status.queues)
    if as_json:
        print(msgspec.json.encode(groups).decode())
    else:
        table = Table()
        for column in ("topic", "group", "lanes", "lag", "leased", "available", "dead"):
            is_name = column in {"topic", "group"}
            table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name)
        for one in groups:
            numbers = (one.lanes, one.lag, one.leased, one.available, one.dead_lettered)
            table.add_row(escape(one.topic), escape(one.group), *(f"{number:,}" for number in numbers))
        standard_output().print(table if groups else "no groups to show")
    if not status.running:
        end_without_job(place, "these are the stored groups")


def run_reset(
    place: JobPlace, group: str, topic: str, to: str, queue_id: int | None, admin_key_file: Path | None = None
) -> None:
    """Let the group continue elsewhere: at the start or the end of each queue, or at an offset of one queue.

    Raises:
        Invalid: The group has no lane there, or `to` is not a place.
        Refused: The job refuses an operation.
        Unavailable: No job runs, or it does not answer.
    """
    if to not in PLACES and not is_offset(to):
        message = f"{to!r} is not a place: use earliest, latest, or a queue offset"
        raise Invalid(message, subject=topic)
    if is_offset(to) and queue_id is None:
        message = f"name the queue with --queue: {to} is an offset of one queue"
        raise Invalid(message, subject=topic)
    job = require_running_job(place, "change groups")
    queues = [queue for queue in queues_of(job, group, topic) if queue_id in (None, queue.queue_id)]
    if not queues:
        where = topic if queue_id is None else f"{topic}/{queue_id}"
        message = f"the group {group} has never popped {where}; `popstream group list` shows the groups"
        raise Invalid(message, subject=group)
    commands = [
        ResetOffset(
            v=1,
            topic=topic,
            queue_id=queue.queue_id,
            group=group,
            queue_offset=PLACES[to](queue) if to in PLACES else int(to),
        )
        for queue in queues
    ]
    send_all(job, commands, admin_key_file)
    say(f"{group} continues at {to} in {counted(len(commands), 'queue')} of {topic}")


def run_forget(place: JobPlace, group: str, topics: Sequence[str], admin_key_file: Path | None = None) -> None:
    """Delete the lanes of a group, in these topics or in all.

    Raises:
        Invalid: The group has no lane there.
        Refused: The job refuses an operation.
        Unavailable: No job runs, or it does not answer.
    """
    job = require_running_job(place, "change groups")
    queues = [queue for topic in (topics or (None,)) for queue in queues_of(job, group, topic)]
    if not queues:
        message = f"the group {group} has no lanes there; `popstream group list` shows the groups"
        raise Invalid(message, subject=group)
    commands = [ForgetLane(v=1, topic=queue.topic, queue_id=queue.queue_id, group=group) for queue in queues]
    send_all(job, commands, admin_key_file)
    say(f"{counted(len(queues), 'lane')} of {group} forgotten")


def _groups_in(queues: Iterable[QueueView]) -> list[GroupView]:
    """Return the groups of the queues, by topic and name."""
    lanes = defaultdict(list)
    for queue in queues:
        for lane in queue.lanes:
            lanes[queue.topic, lane.group].append(lane)
    return [
        GroupView(
            topic=topic,
            group=group,
            lanes=len(found),
            lag=sum(lane.lag for lane in found),
            leased=sum(lane.leased for lane in found),
            available=sum(lane.available for lane in found),
            dead_lettered=sum(lane.dead_lettered for lane in found),
        )
        for (topic, group), found in sorted(lanes.items())
    ]


def confirm_new_group(target: Target, topic: str, group: str) -> None:
    """Ask, or warn where nobody can answer, before a group begins at a topic: its lanes stay, and lag if it is a typo.

    Warns where that cannot be known: the job does not run on this machine, or does not answer.

    Raises:
        typer.Exit: It was not confirmed.
    """
    try:
        queues = None if target.job is None else queues_of(target.job, group, topic)
    except Unavailable:
        queues = None
    if queues is None:
        say(f"cannot tell whether group {group} is new to {topic}; --new-group skips this check")
        return
    if queues:
        return
    command = f"popstream group forget {shlex.quote(group)} {topic}"
    text = completed_commands(
        f"the group {group} has never popped {topic}: it begins there, and stays until `{command}`"
    )
    if not sys.stdin.isatty():
        say(f"{text}; pass --new-group to confirm")
    elif not typer.confirm(f"{text}. Continue?", err=True):
        raise typer.Exit(Exit.NOT_AS_ASKED)


def queues_of(job: JobFile, group: str | None, topic: str | None) -> list[QueueView]:
    """Return the queues of a running job, of this topic, and with lanes of this group.

    Raises:
        Unavailable: The job does not answer.
    """
    return ask(job, StatusRequest(group=group, topic=topic, limit=ALL_LANES), Status).queues


def send_all(job: JobFile, commands: Sequence[Command], admin_key_file: Path | None) -> None:
    """Send operations to a running job, signed if there is a key.

    Raises:
        Invalid: The file of the key is wrong.
        Refused: The job refuses one of them.
        Unavailable: Kafka or the job does not answer.
    """
    target = Target(job.connection, job.prefix, admin_key_file=admin_key_file)
    with Transport(target.client_settings("group")) as transport:
        answers = [future.result() for future in [transport.submit(command) for command in commands]]
    for answer in answers:
        if answer.reason is not Reason.OK:
            raise Refused(answer)
