"""A dead letter, as it is read from its topic."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from popstream.payload.payloads import size_bytes_of
from popstream.payload.redriven import Redriven
from popstream.wire.base_errors import Invalid
from popstream.wire.dead_letter_record import DeadLetterHistory, identity_of, job_headers_of
from popstream.wire.decode_errors import DECODE_ERRORS
from popstream.wire.headers import (
    DEAD_LETTER_ATTEMPTS_HEADER,
    DEAD_LETTER_CAUSE_HEADER,
    DEAD_LETTER_GONE_HEADER,
    DEAD_LETTER_GROUP_HEADER,
    DEAD_LETTER_HEADERS,
    DEAD_LETTER_HISTORY_HEADER,
    DEAD_LETTER_QUEUE_ID_HEADER,
    DEAD_LETTER_QUEUE_OFFSET_HEADER,
    DEAD_LETTER_REASON_HEADER,
    DEAD_LETTER_TOO_LARGE_HEADER,
    DEAD_LETTER_TOPIC_HEADER,
)
from popstream.wire.limits import OFFSET_MAX, QUEUE_ID_MAX

if TYPE_CHECKING:
    from popstream.payload.payloads import Payload
    from popstream.wire.letter_handling import LetterHandling

__all__ = ["Letter", "LetterPlace", "parse_place"]

LetterPlace = tuple[int, int]
"""Partition and offset of a letter in the dead-letter topic."""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter: the message, why its group gave it up, and what became of it since.

    Attributes:
        partition: Partition of the dead-letter topic.
        kafka_offset: Its offset there.
        letter_id: Identifies it, also when a restored job has written it a second time.
        topic: Topic of the message.
        queue_id: Its queue, which is the partition.
        queue_offset: Its queue offset, which is the Kafka offset.
        group: The group that gave it up.
        reason: `attempt_limit`, or the cause of the reject, such as `rejected`.
        cause: What the handler raised in the last attempt, after `handler: `; None: it raised nothing.
        attempts: Deliveries to the group.
        history: The last pop, and the operation by which it was given up; None: the header is malformed.
        given_up_ms: When it was given up, in ms since 1970.
        redrives: How many times the message was redriven before.
        cannot_redrive: Why it cannot be redriven, whatever its topic is now; an empty text: it can.
        key: Key of the message.
        value: Value of the message; empty if the message is not in the letter.
        headers: Headers of the message, those of popstream included.
        handling: What became of it; None: it was neither redriven nor purged.
    """

    partition: int
    kafka_offset: int
    letter_id: str
    topic: str
    queue_id: int
    queue_offset: int
    group: str
    reason: str
    cause: str | None
    attempts: int
    history: DeadLetterHistory | None
    given_up_ms: int
    redrives: int
    cannot_redrive: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    handling: LetterHandling | None = None

    @property
    def place(self) -> str:
        """Its partition and offset as text, by which commands name it."""
        return f"{self.partition}/{self.kafka_offset}"

    @property
    def size_bytes(self) -> int:
        """Size of key, value and headers, in bytes."""
        return size_bytes_of(self.key, self.value, self.headers)

    @classmethod
    def of(cls, partition: int, kafka_offset: int, record: Payload) -> Letter:
        """Return the letter of a record of the dead-letter topic; of what is no letter `cannot_redrive` says so."""
        found = job_headers_of(record.headers)
        queue_id = _number(found.get(DEAD_LETTER_QUEUE_ID_HEADER))
        queue_offset = _number(found.get(DEAD_LETTER_QUEUE_OFFSET_HEADER))
        topic, group = _text(found.get(DEAD_LETTER_TOPIC_HEADER)), _text(found.get(DEAD_LETTER_GROUP_HEADER))
        is_letter = bool(topic and group) and 0 <= queue_id <= QUEUE_ID_MAX and 0 <= queue_offset <= OFFSET_MAX
        cannot_redrive = "" if is_letter else "its headers are not those of a dead letter"
        for name in (DEAD_LETTER_GONE_HEADER, DEAD_LETTER_TOO_LARGE_HEADER):
            cannot_redrive = cannot_redrive or _text(found.get(name))
        history = _history(found.get(DEAD_LETTER_HISTORY_HEADER))
        return cls(
            partition=partition,
            kafka_offset=kafka_offset,
            # What somebody else wrote here may have nothing by which to recognise it elsewhere.
            letter_id=identity_of(record.headers).hex()
            if is_letter
            else f"{partition}/{kafka_offset}/{record.timestamp_ms}",
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            group=group,
            reason=_text(found.get(DEAD_LETTER_REASON_HEADER)),
            cause=_text(found[DEAD_LETTER_CAUSE_HEADER]) if DEAD_LETTER_CAUSE_HEADER in found else None,
            attempts=max(0, _number(found.get(DEAD_LETTER_ATTEMPTS_HEADER))),
            history=history,
            given_up_ms=record.timestamp_ms if history is None else history.dead_lettered_ms,
            redrives=Redriven.count_of(record.headers),
            cannot_redrive=cannot_redrive,
            key=record.key,
            value=record.value,
            headers=[(name, value) for name, value in record.headers if name not in DEAD_LETTER_HEADERS],
        )


def parse_place(text: str) -> LetterPlace:
    """Return the partition and offset of a letter that a command names.

    Raises:
        Invalid: It is no such place.

    >>> parse_place("2/17")
    (2, 17)
    """
    found = re.fullmatch(r"(\d{1,10})/(\d{1,19})", text)
    if found is None:
        message = (
            f"{text!r} is not the place of a dead letter: write PARTITION/OFFSET, which `dead list` shows, as in 2/17"
        )
        raise Invalid(message, subject=text)
    return int(found[1]), int(found[2])


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _number(value: bytes | None) -> int:
    """Return the number of a header; -1: there is none."""
    return int(value) if value is not None and re.fullmatch(rb"\d{1,19}", value) else -1


def _history(value: bytes | None) -> DeadLetterHistory | None:
    try:
        return msgspec.json.decode(value or b"", type=DeadLetterHistory)
    except DECODE_ERRORS:
        return None
