"""The history of a message by the API: what `popstream why` shows, from the tables of the job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from pipelines.control.page_messages import Skip
from pipelines.explain.story import MessageStory, StoryText, story_of, story_text
from pipelines.http_api.endpoint import OneAtATime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["MessageLife", "MessageLives", "MessageRequest"]

WAIT_S = 10.0
MEMORY = "256MiB"
"""Of DuckDB: the job beside it needs the rest of the machine's."""


class MessageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for the history of a message.

    Attributes:
        topic: Its topic.
        queue_id: Its queue.
        queue_offset: Its queue offset.
        group: Only what this group had to do with it.
        zone: Time zone of the times in sentences, such as Europe/Berlin; where the job does not know it, UTC.
    """

    topic: str
    queue_id: Skip
    queue_offset: Skip
    group: str | None = None
    zone: str = "UTC"


class MessageLife(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a message.

    Attributes:
        story: As `popstream why --json` prints it.
        told: The same in sentences.
        zone: Time zone of the times in sentences.
    """

    story: MessageStory
    told: StoryText
    zone: str


class MessageLives:
    """Reads histories of messages.

    Args:
        tables: Returns the folder of the tables, for a message as `Answers.tables` takes it.
    """

    def __init__(self, tables: Callable[[str], Path]) -> None:
        self._tables = tables
        self._turn = OneAtATime("messages", WAIT_S)

    def tell(self, request: MessageRequest, _caller: str) -> MessageLife:
        """Return the history of a message.

        Raises:
            Invalid: There is no such message or group, or the tables do not go back so far.
            Corrupt: A file of a table is damaged or missing.
        """
        tables = self._tables(f"{request.topic}/{request.queue_id}/{request.queue_offset}")
        # Here, because a driver on a node of a cluster has no DuckDB; it has no tables, either.
        from pipelines.explain.message_rows import read_message_rows, require_known  # noqa: PLC0415

        zone = _zone(request.zone)
        groups = None if request.group is None else [request.group]
        with self._turn:
            rows = read_message_rows(tables, request.topic, request.queue_id, request.queue_offset, memory=MEMORY)
            story = story_of(rows, groups, round(time.time() * 1000), zone)
            if not any(each.events for each in story.groups):
                require_known(tables, rows, request.group, memory=MEMORY)
        return MessageLife(story=story, told=story_text(story, zone), zone=zone.key)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo("UTC")
