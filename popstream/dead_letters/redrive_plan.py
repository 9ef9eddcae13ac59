"""What is sent for a dead letter that is redriven.

Without three headers of the message: a former redelivery to one group and a former redrive are over, and by its
deduplication id the job would take the message for a duplicate of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from popstream.payload.inner_batch import Unwrapped, unwrap_payload
from popstream.payload.payloads import Payload
from popstream.payload.redelivery import Redelivery
from popstream.payload.redriven import Redriven
from popstream.wire.base_errors import Corrupt, Invalid
from popstream.wire.headers import (
    DEDUP_ID_HEADER,
    DELIVER_AT_HEADER,
    MESSAGE_ID_HEADER,
    REDELIVERY_HEADER,
    REDRIVEN_HEADER,
    TAG_HEADER,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from popstream.dead_letters.letter import Letter
    from popstream.payload.inner_batch import TypeOf
    from popstream.wire.command import RedriveTarget

__all__ = ["RedrivenRecord", "plan_redrive"]

LEFT_OUT = frozenset((REDELIVERY_HEADER, REDRIVEN_HEADER, DEDUP_ID_HEADER))


class RedrivenRecord(msgspec.Struct, frozen=True):
    """A record for the queue of the message."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def plan_redrive(
    letter: Letter, to: RedriveTarget, type_of: TypeOf, queue_ids: Collection[int]
) -> list[RedrivenRecord]:
    """Return the records to send for a letter, all to the queue of its message.

    A message for one group is a record of its own, as that which a consumer sends again: a unit becomes its messages.

    Args:
        letter: The letter.
        to: Who gets the message.
        type_of: Returns the type of a topic, as in `unwrap_payload`.
        queue_ids: The queues of its topic; none: the topic does not exist.

    Raises:
        Invalid: It cannot be redriven.
    """
    if letter.cannot_redrive:
        raise Invalid(letter.cannot_redrive, subject=letter.place)
    if letter.queue_id not in queue_ids:
        message = f"{letter.topic}/{letter.queue_id} does not exist any more"
        raise Invalid(message, subject=letter.place)
    try:
        unwrapped = unwrap_payload(
            letter.topic, Payload(letter.key, letter.value, letter.headers, letter.given_up_ms), type_of
        )
    except Corrupt as error:
        message = f"its message cannot be read: {error}"
        raise Invalid(message, subject=letter.place) from error
    marks = [Redriven(letter.letter_id, letter.redrives + 1).header()]
    if to == "group":
        marks.append(Redelivery(letter.group).header())
    if to == "topic" or unwrapped is None:
        kept = [(name, value or b"") for name, value in letter.headers if name not in LEFT_OUT]
        return [RedrivenRecord(letter.key, letter.value, [*kept, *marks])]
    return [_record_alone(one, marks) for one in unwrapped]


def _record_alone(message: Unwrapped, marks: list[tuple[str, bytes]]) -> RedrivenRecord:
    """Return a message of a unit as a record of its own."""
    own = {
        TAG_HEADER: message.tag.encode(),
        MESSAGE_ID_HEADER: message.message_id.encode(),
        DELIVER_AT_HEADER: b"%d" % message.deliver_at_ms if message.deliver_at_ms else b"",
    }
    given = [(name, value or b"") for name, value in message.headers]
    headers = [*given, *((name, value) for name, value in own.items() if value), *marks]
    # kafka-python cannot send a record with neither key nor value.
    value = b"" if message.key is None and message.value is None else message.value
    return RedrivenRecord(message.key, value, headers)
