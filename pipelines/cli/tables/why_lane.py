"""`popstream why --lane`: what blocks a lane."""

from pathlib import Path
from time import time

import msgspec

from pipelines.cli.control_characters import escape_controls
from pipelines.cli.exits import say
from pipelines.cli.state.status import status_of
from pipelines.cli.tables.why import local_zone
from pipelines.cli.target import JobPlace
from pipelines.control.messages import StatusRequest
from pipelines.explain.lane_story import lane_story, lane_story_lines
from pipelines.explain.message_rows import read_message_rows
from pipelines.explain.story import MessageStory, story_of
from pipelines.report.report_data import Lane
from popstream.wire.base_errors import Invalid

__all__ = ["run_why_lane"]


def run_why_lane(job: JobPlace, tables: Path, wanted: Lane, *, as_json: bool) -> None:
    """Show what blocks a lane, by the running job, or by the stored state.

    Raises:
        Invalid: There is no such lane.
        Unavailable: There is neither job nor state, or the job does not answer.
    """
    status = status_of(job, StatusRequest(group=wanted.group, topic=wanted.topic))
    queue = next((queue for queue in status.queues if queue.queue_id == wanted.queue_id), None)
    lane = next((lane for lane in queue.lanes if lane.group == wanted.group), None) if queue is not None else None
    if queue is None or lane is None:
        message = f"the group {wanted.group} has no lane in {wanted.queue}"
        raise Invalid(message, subject=wanted.group)
    zone, now_ms = local_zone(), round(time() * 1000)
    first: MessageStory | None = None
    if lane.commit_offset < queue.commit_position and tables.is_dir():
        rows = read_message_rows(tables, wanted.topic, wanted.queue_id, lane.commit_offset)
        first = story_of(rows, [wanted.group], now_ms, zone)
    story = lane_story(queue, lane, None if first is None else first.groups[0], now_ms, zone)
    if as_json:
        print(msgspec.json.encode(story).decode())
    else:
        print(*map(escape_controls, lane_story_lines(story, zone)), sep="\n")
    if not status.running:
        say(f"no job runs in {status.folder}; this is the stored state")
