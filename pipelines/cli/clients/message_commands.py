"""The commands that are clients of a job: `ops`, `send`, `consume`, `perf` and `release`."""

# ruff: noqa: PLC0415 - so that `popstream --help` takes a moment and not ten seconds
import time
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.clients.perf.ack_form import AckForm
from pipelines.cli.clients.perf.load_message import VALUE_BYTES_MIN
from pipelines.cli.options import JsonOutput, TargetOptions, Topic, takes_options
from pipelines.cli.time_options import Duration, duration_option, moment_ms

__all__ = ["consume", "ops", "perf", "release", "send"]

InvisibleTime = Annotated[Duration, duration_option("invisible time of each message")]
HALF_A_MINUTE = Duration(30_000)
A_MINUTE = Duration(60_000)
A_MOMENT = Duration(3_000)
Timeout = Annotated[Duration, duration_option("how long to wait for the answers")]


@takes_options(target=TargetOptions)
def ops(
    operation: Annotated[
        str | None,
        typer.Argument(help="an operation as JSON; - or nothing: standard input, one per line", metavar="OPERATION"),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="print an operation of this type as a template (all: one of each type)"),
    ] = None,
    timeout: Timeout = HALF_A_MINUTE,
    *,
    target: TargetOptions,
    as_json: JsonOutput = False,
) -> None:
    """Send operations to the job and print their answers.

    `v`, `op_id` and `reply_to` are filled in. Exit code 1: an operation was refused as a whole.

    popstream ops --example pop | popstream ops --json
    """
    from pipelines.cli.clients.ops import EXAMPLES, example_lines, read_operations, read_text, run_ops
    from pipelines.cli.target import find_target

    if example is not None:
        if example not in {*EXAMPLES, "all"}:
            message = f"unknown type {example!r}: use one of {', '.join(EXAMPLES)}"
            raise typer.BadParameter(message, param_hint="--example")
        print("\n".join(example_lines(example)))
        return
    commands = read_operations(read_text(operation))
    run_ops(find_target(target), commands, timeout_ms=int(timeout), as_json=as_json)


@takes_options(target=TargetOptions)
def send(
    topic: Topic,
    file: Annotated[
        Path | None, typer.Argument(help="one message per line; - or nothing: standard input", metavar="FILE")
    ] = None,
    queue: Annotated[int | None, typer.Option(help="queue to send to; by default the producer chooses", min=0)] = None,
    tag: Annotated[str | None, typer.Option(help="tag of the messages")] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="when the messages can be popped: ms since 1970, or ISO 8601 (UTC if it names no zone)"
        ),
    ] = None,
    delay: Annotated[
        Duration | None,
        duration_option("the same as a time from now, at most 168h"),
    ] = None,
    create: Annotated[
        int, typer.Option(metavar="QUEUES", help="create the topic with this number of queues", min=0)
    ] = 0,
    *,
    target: TargetOptions,
) -> None:
    """Send one message per line, and wait until they are dispatched: they can be popped then, or at their time."""
    from pipelines.cli.clients.send_and_consume import run_send
    from pipelines.cli.target import find_target

    if deliver_at is not None and delay is not None:
        message = "give --deliver-at or --delay, not both"
        raise typer.BadParameter(message)
    deliver_at_ms = None if deliver_at is None else moment_ms(deliver_at)
    if delay is not None:
        deliver_at_ms = int(time.time() * 1000) + int(delay)
    run_send(find_target(target), topic, file, queue_id=queue, tag=tag, deliver_at_ms=deliver_at_ms, create=create)


@takes_options(target=TargetOptions)
def consume(
    topic: Topic,
    group: Annotated[str, typer.Option(help="consumer group")],
    count_max: Annotated[
        int,
        typer.Option(
            "--max",
            metavar="N",
            help="stop after this number of messages, and those of the last unit; 0: no limit",
            min=0,
        ),
    ] = 0,
    invisible_time: InvisibleTime = HALF_A_MINUTE,
    wait: Annotated[
        Duration,
        duration_option("stop when no message has arrived for this time"),
    ] = A_MOMENT,
    follow: Annotated[bool, typer.Option("--follow", help="do not stop when no message arrives")] = False,  # noqa: FBT002
    no_ack: Annotated[  # noqa: FBT002
        bool, typer.Option("--no-ack", help="leave the messages leased: they are redelivered after the invisible time")
    ] = False,
    new_group: Annotated[  # noqa: FBT002
        bool, typer.Option("--new-group", help="do not ask or warn if the group has never popped the topic")
    ] = False,
    *,
    target: TargetOptions,
    as_json: JsonOutput = False,
) -> None:
    """Pop messages from all queues of a topic in turn, print one per line, and ack them.

    The first pop of a group makes a lane in each queue, which remains: on a
    terminal the command asks first, elsewhere it warns.
    """
    from pipelines.cli.clients.groups import confirm_new_group
    from pipelines.cli.clients.send_and_consume import require_topic, run_consume
    from pipelines.cli.target import find_target

    found = find_target(target)
    require_topic(found, topic)
    if not new_group:
        confirm_new_group(found, topic, group)
    run_consume(
        found,
        topic,
        group,
        count_max=count_max,
        invisible_time_ms=int(invisible_time),
        wait_ms=int(wait),
        follow=follow,
        ack=not no_ack,
        as_json=as_json,
    )


@takes_options(target=TargetOptions)
def perf(
    messages: Annotated[int, typer.Option(help="messages to send", min=1)] = 100_000,
    size: Annotated[int, typer.Option(help="bytes of a value", min=VALUE_BYTES_MIN, max=1_000_000)] = 100,
    rate: Annotated[
        float,
        typer.Option(help="messages sent in a second while workers consume; 0: all first, as fast as possible", min=0),
    ] = 0.0,
    topic: Annotated[
        str | None, typer.Option(help="message topic; by default a new one, deleted at the end", show_default=False)
    ] = None,
    queues: Annotated[int, typer.Option(help="queues of a new topic", min=1)] = 8,
    groups: Annotated[int, typer.Option(help="consumer groups; each consumes all messages", min=1)] = 1,
    workers: Annotated[int, typer.Option(help="consumers of a group, each a process", min=1)] = 1,
    threads: Annotated[int, typer.Option(help="threads of a worker", min=1)] = 1,
    ack: Annotated[
        AckForm,
        typer.Option(
            help="message: each alone, by `run`; set: those of a call of the handler, by `run_sets`;"
            " pop: those of a pop, before the next one"
        ),
    ] = AckForm.MESSAGE,
    pop_size: Annotated[
        int, typer.Option(help="messages of a pop, or of a call of the handler of sets", min=1, max=10_000)
    ] = 100,
    prefetch: Annotated[int, typer.Option(help="messages that a worker leases ahead", min=1)] = 10_000,
    invisible_time: InvisibleTime = A_MINUTE,
    timeout: Annotated[
        Duration,
        duration_option("give up after this long without progress"),
    ] = A_MINUTE,
    keep: Annotated[bool, typer.Option("--keep", help="leave the topic and the lanes of the groups")] = False,  # noqa: FBT002
    *,
    target: TargetOptions,
    as_json: JsonOutput = False,
) -> None:
    """Put a load on a running job; print throughput and latencies.

    At the end every message is accounted for in every group. Exit code 1: one is missing, was not acked, or was
    delivered after an applied ack.

    popstream perf --messages 1000000 --workers 2 --ack set
    popstream perf --messages 30000 --rate 500
    """
    from pipelines.cli.clients.perf.run_perf import new_plan, run_perf
    from pipelines.cli.target import find_target

    plan = new_plan(
        find_target(target),
        topic=topic,
        queues=queues,
        messages=messages,
        message_bytes=size,
        rate=rate,
        groups=groups,
        workers=workers,
        threads=threads,
        ack=ack,
        pop_size=pop_size,
        prefetch=prefetch,
        invisible_time_ms=int(invisible_time),
        stall_s=int(timeout) / 1000,
    )
    run_perf(plan, keep=keep, as_json=as_json)


@takes_options(target=TargetOptions)
def release(
    topics: Annotated[list[str], typer.Argument(help="message topics", metavar="TOPIC...")],
    client: Annotated[str, typer.Option(help="client id of the consumer that was killed")],
    group: Annotated[str, typer.Option(help="consumer group")],
    timeout: Timeout = HALF_A_MINUTE,
    *,
    target: TargetOptions,
) -> None:
    """Release the leases of a consumer whose process was killed.

    Otherwise they expire at their deadlines. A consumer that starts
    with the same client id releases them itself.
    """
    from pipelines.cli.clients.release import run_release
    from pipelines.cli.target import find_target

    run_release(find_target(target), topics, group, client, timeout_ms=int(timeout))
