"""`popstream policy` and `popstream group policy`: show and set the rules of queues and groups."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from pipelines.cli.clients.groups import confirm_new_group, queues_of, send_all
from pipelines.cli.exits import say
from pipelines.cli.printing import counted, standard_output
from pipelines.cli.target import JobPlace, Target, end_without_job, require_left_alone, require_running_job, running_job
from pipelines.cli.time_options import Duration
from pipelines.control.client import ask
from pipelines.control.messages import Policies, PoliciesRequest
from pipelines.control.policy_views import PolicyView
from pipelines.control.stored_answers import stored_policies
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Command, Policy

__all__ = ["run_policy", "run_show_policies"]


def run_show_policies(place: JobPlace, topics: Sequence[str], group: str | None, *, as_json: bool) -> None:
    """Print the rules of the queues of topics and of their groups, or of one group, from the job or the stored state.

    Raises:
        Invalid: There is no such queue or group.
        Unavailable: There is neither job nor state, or the job does not answer.
        typer.Exit: No job runs; the stored rules were printed.
    """
    job = running_job(place)
    found: list[PolicyView] = []
    for topic in topics:
        request = PoliciesRequest(topic=topic, group=group)
        policies = (
            ask(job, request, Policies) if job is not None else stored_policies(require_left_alone(place), request)
        )
        if not policies.policies:
            what = f"queue of {topic}" if group is None else f"group {group} in {topic}"
            message = f"the job has no {what}"
            raise Invalid(message, subject=topic)
        found += policies.policies
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        _print(found)
    if job is None:
        end_without_job(place, "these are the stored policies")


def run_policy(
    place: JobPlace,
    group: str | None,
    topics: Sequence[str],
    *,
    is_new: bool,
    admin_key_file: Path | None = None,
    **rules: Any,  # noqa: ANN401 - Policy's
) -> None:
    """Set the policy of a group, or that of the queues, in all queues of the topics.

    Args:
        place: Where the job is.
        group: The consumer group; None: the policy of the queues.
        topics: The topics.
        is_new: Do not ask or warn if the group has never popped one of them.
        admin_key_file: The admin key, for a job that has any.
        **rules: Fields of `Policy`.

    Raises:
        Invalid: The job does not know a topic, or the file of the key is wrong.
        Refused: The job refuses an operation.
        Unavailable: No job runs, or it does not answer.
        typer.Exit: A group that is new to a topic was not confirmed.
    """
    job = require_running_job(place, "change policies")
    commands: list[Command] = []
    for topic in topics:
        queues = queues_of(job, None, topic)
        if not queues:
            message = f"the job has no queue of {topic}"
            raise Invalid(message, subject=topic)
        if group is not None and not is_new:
            confirm_new_group(Target(job.connection, job.prefix, job=job), topic, group)
        commands += [Policy(v=1, topic=topic, queue_id=queue.queue_id, group=group, **rules) for queue in queues]
    send_all(job, commands, admin_key_file)
    whose = "the policy" if group is None else f"the policy of {group}"
    say(f"{whose} holds in {counted(len(commands), 'queue')} of {', '.join(topics)}")


def _print(policies: Iterable[PolicyView]) -> None:
    table = Table()
    for column in ("topic", "queues", "group", "rules of", "attempts", "back-off", "parked", "in flight", "quotas"):
        table.add_column(column, overflow="fold")
    for queues, view in _alike(policies):
        table.add_row(
            escape(view.topic),
            queues,
            "" if view.group is None else escape(view.group),
            view.origin,
            f"{view.max_attempts:,}" if view.max_attempts else _unset(view, "no limit"),
            ",".join(str(Duration(pause_ms)) for pause_ms in view.back_off_ms) or _unset(view, "none"),
            f"{view.parked_max:,}",
            _limit(view.in_flight_max),
            ", ".join(f"{name} {limit:,}" for name, limit in view.quotas.items()) or "none",
        )
    standard_output().print(table)


def _alike(policies: Iterable[PolicyView]) -> Iterator[tuple[str, PolicyView]]:
    """Yield the queues with the same rules as text, such as `0-3, 7`, and the rules."""
    by_rules: dict[bytes, list[PolicyView]] = {}
    for view in sorted(policies, key=lambda view: (view.topic, view.group or "", view.queue_id)):
        by_rules.setdefault(msgspec.json.encode(msgspec.structs.replace(view, queue_id=0)), []).append(view)
    for views in by_rules.values():
        yield _ranges([view.queue_id for view in views]), views[0]


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text.

    >>> _ranges([0, 1, 2, 3, 7]), _ranges([5])
    ('0-3, 7', '5')
    """
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _unset(view: PolicyView, without: str) -> str:
    """Return what holds without a rule for retries: a queue leaves them to what consumers declare."""
    return "consumers' own" if view.group is None else without


def _limit(limit: int) -> str:
    return f"{limit:,}" if limit else "no limit"
