"""`popstream queue`: the consume queues of a topic, and single units."""

from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from broker_state.consume_queue import NO_DUPLICATE, Unit
from pipelines.build_consume_queue.queue_view import ConsumeQueueView, FoundMessage, FoundUnit, QueueRequest
from pipelines.cli.printing import standard_output
from pipelines.cli.target import JobApi, JobPlace, end_without_job, require_left_alone, require_running_job, running_job
from pipelines.control.client import ask
from pipelines.control.job_file import JobFile
from pipelines.control.messages import RebuildRequest, Rebuilt
from pipelines.control.stored_answers import stored_queues
from pipelines.times import utc_text
from popstream.payload.payloads import Payloads
from popstream.payload.shared_payloads import shared_payloads
from popstream.payload.unwrapped_records import records_of
from popstream.settings import ClientSettings, new_client_id
from popstream.wire.base_errors import Invalid
from popstream.wire.key_hash import key_hash

__all__ = ["opened", "print_queues", "queues_of", "run_queue", "run_rebuild", "show_queues", "unit_text"]

REBUILD_TIMEOUT_S = 300.0
READ_TIMEOUT_S = 10.0


def run_queue(place: JobPlace, request: QueueRequest, *, as_json: bool) -> None:
    """Print the queues of the running job, or the stored queues.

    Raises:
        Invalid: No such queue is built.
        Unavailable: There is neither job nor state, or the job does not answer.
        typer.Exit: No job runs; the stored queues were printed.
    """
    views, is_running = queues_of(place, request)
    show_queues(views, as_json=as_json)
    if not is_running:
        end_without_job(place, "these are the stored queues")


def show_queues(views: list[ConsumeQueueView], *, as_json: bool) -> None:
    """Print queues, for people or as JSON."""
    if as_json:
        print(msgspec.json.encode(views).decode())
    else:
        print_queues(standard_output(), views)


def queues_of(place: JobPlace, request: QueueRequest) -> tuple[list[ConsumeQueueView], bool]:
    """Return the queues of the running job and True, or the stored queues and False.

    Raises:
        Invalid: No such queue is built.
        Unavailable: There is neither job nor state, or the job does not answer.
    """
    job = running_job(place)
    if job is not None:
        views = ask(job, request, list[ConsumeQueueView])
        if isinstance(place, JobApi) and place.connection is None:  # whether this machine reaches Kafka is not known
            return views, True
        return [opened(view, request, job) for view in views], True
    return stored_queues(require_left_alone(place), request), False


def run_rebuild(place: JobPlace, topic: str, queue_id: int | None, from_offset: int) -> None:
    """Let the running job read a queue again, from an offset on.

    Raises:
        Invalid: No queue was named, or it does not exist.
        Unavailable: No job runs.
    """
    if queue_id is None:
        message = "name the queue to rebuild with --queue"
        raise Invalid(message)
    job = require_running_job(place, "rebuild")
    request = RebuildRequest(topic=topic, queue_id=queue_id, from_offset=from_offset)
    found = ask(job, request, Rebuilt, timeout_s=REBUILD_TIMEOUT_S)
    print(f"{topic}/{queue_id} is read again from offset {found.from_offset}")


def opened(view: ConsumeQueueView, request: QueueRequest, job: JobFile) -> ConsumeQueueView:
    """Return the view with the requested messages inside inner batches, read from the message topic."""
    is_of_many = [found.unit is not None and found.unit.inner_count > 1 for found in view.found]
    if not any(is_of_many) or (request.key_hash is None and request.message_offset is None):
        return view
    settings = ClientSettings(**job.connection.client_options, client_id=new_client_id(), prefix=job.prefix)
    payloads = shared_payloads(settings)
    try:
        opened = [
            msgspec.structs.replace(found, inside=list(_inside(view, found.unit, request, payloads)))
            if found.unit is not None and found.unit.inner_count > 1
            else found
            for found in view.found
        ]
    finally:
        payloads.close()
    return msgspec.structs.replace(view, found=opened)


def _inside(view: ConsumeQueueView, unit: Unit, request: QueueRequest, payloads: Payloads) -> Iterator[FoundMessage]:
    """Yield the requested messages of a unit. A hash may be that of a key or of a message id."""
    for queue_offset, payload in payloads.read(view.topic, view.queue_id, unit.queue_offset, 1, READ_TIMEOUT_S):
        if queue_offset != unit.queue_offset:
            return  # retention has deleted it
        for record in records_of(view.topic, view.queue_id, queue_offset, payload, lambda _: view.queue_type):
            message_offset = unit.message_base + record.inner_index
            hashes = {key_hash(record.key), key_hash(record.message_id.encode())} - {0}
            if request.message_offset == message_offset or request.key_hash in hashes:
                yield FoundMessage(
                    record.inner_index,
                    message_offset,
                    record.message_id,
                    None if record.key is None else record.key.decode(errors="replace"),
                    len(record.value or b""),
                )


def print_queues(console: Console, views: list[ConsumeQueueView]) -> None:
    """Print queues, and the units that were looked for in them."""
    table = Table()
    for column in ("queue", "type", "from", "read to", "behind", "poppable to", "units", "messages", "holes"):
        is_name = column in {"queue", "type"}
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name)
    for view in views:
        numbers = (
            view.start_offset,
            view.end_offset,
            view.lag,
            view.commit_position,
            view.unit_count,
            view.message_count,
            view.hole_count,
        )
        name = escape(f"{view.topic}/{view.queue_id}")
        table.add_row(name, view.queue_type, *("?" if number is None else f"{number:,}" for number in numbers))
    console.print(table)
    for view in views:
        name = escape(f"{view.topic}/{view.queue_id}")
        if view.problem:
            console.print(f"[bold red]{name}: the job refuses it: {escape(view.problem)}")
        if view.forgotten_ids:
            text = f"{name}: {view.forgotten_ids:,} dedup_ids were forgotten before dedup_window_s was over, as more"
            console.print(f"[yellow]{text} than dedup_ids_max came: repeats of their messages are delivered")
        if view.holes:
            runs = ", ".join(f"{first:,}..{end - 1:,}" for first, end in view.holes)
            console.print(f"holes of {name}: {runs}", soft_wrap=True)
        for found in view.found:
            console.print(f"{name} {unit_text(found)}", soft_wrap=True, markup=False)
            for message in found.inside:
                console.print(f"    {_message_text(message)}", soft_wrap=True, markup=False)
    console.print(
        "from, read to, poppable to: queue offsets, which equal Kafka offsets; behind: offsets to read", style="dim"
    )


def _message_text(message: FoundMessage) -> str:
    key = "" if message.key is None else f", key {message.key}"
    what = f"message {message.inner_index} of it, offset {message.message_offset:,}, {message.size_bytes:,} bytes"
    return f"{what}, id {message.message_id}{key}"


def unit_text(found: FoundUnit) -> str:
    """Return what is known about a unit, in one line."""
    if found.unit is None:
        return f"{found.by}: {found.why}"
    unit: Unit = found.unit
    messages = "" if unit.inner_count == 1 else f", {unit.inner_count:,} messages from {unit.message_base:,}"
    tag = f", tag {unit.tag_hash}" if unit.tag_hash else ""
    delay = f", to be delivered at {utc_text(unit.deliver_at_ms)}" if unit.deliver_at_ms else ""
    is_first = unit.duplicate_of == NO_DUPLICATE
    repeats = "" if is_first else f", a duplicate of offset {unit.duplicate_of:,}, which no group gets"
    unreadable = "" if unit.is_readable else ", UNREADABLE: the headers of its inner batch are malformed"
    what = f"offset {unit.queue_offset:,}, {unit.size_bytes:,} bytes, stored {utc_text(unit.store_time_ms)}"
    return f"{found.by}: {what}{messages}{tag}{delay}{repeats}{unreadable}"
