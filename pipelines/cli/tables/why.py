"""`popstream why`: the history of a message."""

from datetime import datetime, tzinfo
from pathlib import Path
from time import time

import msgspec

from pipelines.cli.control_characters import escape_controls
from pipelines.cli.exits import say
from pipelines.cli.tables.message_place import Place, place_of_message_id
from pipelines.cli.target import JobPlace
from pipelines.explain.message_rows import read_message_rows, require_known
from pipelines.explain.story import story_lines, story_of
from pipelines.explain.timeline import timeline_svg
from popstream.wire.base_errors import Invalid

__all__ = ["local_zone", "run_why"]


def run_why(
    job: JobPlace,
    tables: Path,
    place: Place,
    *,
    message_id: str | None,
    group: str | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Show the history of a message.

    Raises:
        Invalid: There is no such message or group, or the tables do not go back so far.
        Corrupt: A file of a table is damaged or missing.
        Unavailable: The message is named by its id, and the job does not answer.
    """
    if message_id is not None:
        place, note = place_of_message_id(job, place, message_id)
        say(note)
    if place.queue_id is None or place.queue_offset is None:
        message = "name the message by TOPIC/QUEUE/OFFSET, or by TOPIC and --message-id"
        raise Invalid(message)
    rows = read_message_rows(tables, place.topic, place.queue_id, place.queue_offset)
    zone = local_zone()
    story = story_of(rows, None if group is None else [group], round(time() * 1000), zone)
    if not any(each.events for each in story.groups):
        require_known(tables, rows, group)
    if as_json:
        print(msgspec.json.encode(story).decode())
    else:
        print(*map(escape_controls, story_lines(story, zone)), sep="\n")
    if plot is not None:
        plot.write_text(timeline_svg(story, zone), encoding="utf-8")
        say(f"the time line is in {plot}")


def local_zone() -> tzinfo:
    """Return the time zone of the machine, or of the variable TZ."""
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    return zone
