"""Which message or queue a command is about."""

from typing import TYPE_CHECKING, NamedTuple

from pipelines.cli.number_text import OFFSET_MAX, is_number, is_offset
from pipelines.report.report_data import Lane
from popstream.wire.base_errors import Invalid
from popstream.wire.key_hash import key_hash

if TYPE_CHECKING:
    from pipelines.cli.target import JobPlace

__all__ = ["Place", "lane_of", "parsed_message", "parsed_place", "parsed_record", "place_of_message_id"]


class Place(NamedTuple):
    """A topic, a queue or a message."""

    topic: str
    queue_id: int | None = None
    queue_offset: int | None = None


def parsed_place(text: str) -> Place:
    """Return what `TOPIC`, `TOPIC/QUEUE` or `TOPIC/QUEUE/OFFSET` names.

    >>> parsed_place("orders/0/1,017")
    Place(topic='orders', queue_id=0, queue_offset=1017)

    Raises:
        Invalid: It is none of these.
    """
    topic, *numbers = text.split("/")
    plain = [number.replace(",", "") for number in numbers]
    if not topic or len(plain) > 2 or not all(map(is_offset, plain)):
        message = f"{text!r} is not a place: write TOPIC/QUEUE/OFFSET, as in orders/0/17"
        raise Invalid(message)
    return Place(topic, *map(int, plain))


def lane_of(group: str, queue: str) -> Lane:
    """Return the lane of a group in the queue that `TOPIC/QUEUE` names.

    Raises:
        Invalid: It names no queue.
    """
    place = parsed_place(queue)
    if place.queue_id is None or place.queue_offset is not None:
        message = "name the queue of the lane by TOPIC/QUEUE"
        raise Invalid(message)
    return Lane(group, place.topic, place.queue_id)


def parsed_message(text: str) -> tuple[str, int, int]:
    """Return topic, queue and offset of a message. Raises Invalid if the text names something else."""
    place = parsed_place(text)
    if place.queue_id is None or place.queue_offset is None:
        message = f"{text!r} is not a message: write TOPIC/QUEUE/OFFSET, as in orders/0/17"
        raise Invalid(message)
    return place.topic, place.queue_id, place.queue_offset


def parsed_record(text: str) -> tuple[int, int]:
    """Return partition and Kafka offset of a record of the ops topic.

    >>> parsed_record("3/1,017")
    (3, 1017)

    Raises:
        Invalid: The text names none.
    """
    numbers = text.replace(",", "").split("/")
    if len(numbers) != 2 or not all(map(is_number, numbers)):
        message = f"{text!r} is not a record: write PARTITION/OFFSET, as in 3/17"
        raise Invalid(message)
    return min(int(numbers[0]), OFFSET_MAX), min(int(numbers[1]), OFFSET_MAX)


def place_of_message_id(job: "JobPlace", place: Place, message_id: str) -> tuple[Place, str]:
    """Return the unit of a topic, or of one queue, that carries a message inside, and a sentence about it.

    Raises:
        Invalid: The place names an offset as well, or no unit carries the message.
        Unavailable: The job does not answer, and there is no state to read.
    """
    # They take longer to import than all that a message named by its offset needs.
    from pipelines.build_consume_queue.queue_view import QueueRequest  # noqa: PLC0415
    from pipelines.cli.state.queue import queues_of  # noqa: PLC0415

    if place.queue_offset is not None:
        message = "name the message by its offset or by --message-id, not by both"
        raise Invalid(message)
    request = QueueRequest(topic=place.topic, queue_id=place.queue_id, key_hash=key_hash(message_id.encode()))
    views, _ = queues_of(job, request)
    units = [(view, found) for view in views for found in view.found if found.unit is not None]
    # Opened by a running job, they show the messages that match; the hash may be that of somebody's key, too.
    named = [each for each in units if any(message.message_id == message_id for message in each[1].inside)]
    for view, found in named or [each for each in units if not each[1].inside]:
        assert found.unit is not None
        where = f"the unit at offset {found.unit.queue_offset:,} of {view.topic}/{view.queue_id}"
        numbers = [message.inner_index for message in found.inside if message.message_id == message_id]
        which = f"message {numbers[0]} of the {found.unit.inner_count:,} in " if numbers else "in "
        return Place(view.topic, view.queue_id, found.unit.queue_offset), f"{message_id} is {which}{where}"
    message = (
        f"no unit of {place.topic} carries a message {message_id} inside; a message with a record of its own is named"
        " by its queue offset, which a producer's SendResult has"
    )
    raise Invalid(message, subject=place.topic)
