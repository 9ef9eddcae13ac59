"""What became of a dead letter: the record of the compacted topic `<prefix>.dead_letters_handled`.

Its key is the id of the letter, in ASCII: the hash of `popstream.wire.dead_letter_record.identity_of` in hexadecimal.
Its value is JSON. Kafka commits it in one transaction with the messages that are sent for the letter.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from popstream.wire.command import RedriveTarget

__all__ = ["LetterHandling"]


class LetterHandling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who redrove or purged a letter, when and why, and where its message is now.

    Attributes:
        v: Version of the format.
        action: What was done with the letter.
        at_ms: When, by the clock of the client, in ms since 1970.
        by: Who, as `user@host`.
        call: Id of the call; all letters of one redrive or purge have the same.
        partition: Partition of the dead-letter topic with the letter.
        kafka_offset: Its offset there.
        group: The group that gave the message up.
        topic: Topic of the message, to which it is redriven as well.
        queue_id: Its queue, likewise.
        queue_offset: Its queue offset when it was given up.
        to: Who gets the redriven message; None: it was purged.
        sent: Inclusive ranges of queue offsets of what was sent for it.
        comment: Why, in the words of who did it.
    """

    v: Literal[1]
    action: Literal["redriven", "purged"]
    at_ms: int
    by: str
    call: str
    partition: int
    kafka_offset: int
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    to: RedriveTarget | None = None
    sent: list[tuple[int, int]] = []
    comment: str = ""
