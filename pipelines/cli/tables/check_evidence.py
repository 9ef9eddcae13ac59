"""What `popstream check` compares the tables with: Kafka's own log, and what the running job counts."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from checkpoints.layout import JobFolder
from checkpoints.reconcile import LogFound
from pipelines.cli.job_sources import log_of
from pipelines.cli.target import running_job
from pipelines.control.client import ask
from pipelines.control.job_file import JobFile
from pipelines.control.messages import Status, StatusRequest
from pipelines.job_settings import JobSettings
from pipelines.recovery.ops_log import LostRecords, OpsPartitionReader
from popstream.kafka_connection import KafkaConnection
from popstream.reach_kafka import reach_kafka
from popstream.wire.command import Command, Pop

if TYPE_CHECKING:
    from expectations.evidence import JobFigures, LogRecord

__all__ = ["KafkaOpsLog", "before_opening", "figures_between", "log_to_compare"]

EVERY_LANE = 1 << 40
POLL_S = 0.5
WAITED_S_MAX = 60.0

_command = msgspec.json.Decoder(Command)


class KafkaOpsLog:
    """The ops topic in Kafka. See `expectations.evidence.OpsLog`."""

    def __init__(self, connection: KafkaConnection, found: LogFound) -> None:
        self.topic_id = found.topic_id
        self.first: Mapping[int, int] = found.first_offset
        self.end: Mapping[int, int] = found.end_offset
        self._connection = connection
        self._topic = found.topic
        self._readers: dict[int, OpsPartitionReader] = {}

    def records(self, partition: int, first: int, end: int) -> Iterator["LogRecord"]:
        """Yield the committed records of [first, end), in order; of what has left the log meanwhile, none.

        Raises:
            Unavailable: Kafka does not answer.
            Corrupt: Kafka returns damaged records.
        """
        if first >= end:
            return
        if partition not in self._readers:
            self._readers[partition] = OpsPartitionReader(self._connection, self._topic, partition)
        with contextlib.suppress(LostRecords):
            for record in self._readers[partition].between(first, end):
                yield log_record(record.offset, record.timestamp, record.value)

    def close(self) -> None:
        """End the connections."""
        for reader in self._readers.values():
            reader.close()


def log_record(kafka_offset: int, timestamp_ms: int, value: bytes | None) -> "LogRecord":
    """Return a record of the ops topic, with how long a pop may wait.

    >>> log_record(7, 1000, b'{"op": "no pop"}').waits_until_ms is None
    True
    """
    from expectations.evidence import LogRecord  # noqa: PLC0415 - it imports Great Expectations, which takes seconds

    try:
        command = _command.decode(value or b"")
    except (msgspec.DecodeError, UnicodeError):
        command = None
    if isinstance(command, Pop) and command.poll_time_ms > 0:
        return LogRecord(kafka_offset, timestamp_ms, timestamp_ms + command.poll_time_ms, command.op_id)
    return LogRecord(kafka_offset, timestamp_ms)


def before_opening(folder: JobFolder) -> Status | None:
    """Return the status of the running job once its tables have all rows of that status; None: no job runs.

    Raises:
        Unavailable: It does not answer, or does not write to its tables.
    """
    job = running_job(folder)
    if job is None:
        return None
    status = _status(job)
    deadline_s = time.monotonic() + WAITED_S_MAX
    while not status.not_ready_reasons and (_status(job, lanes=1).delta_seq or 0) < status.apply_seq:
        if time.monotonic() > deadline_s:
            return None
        time.sleep(POLL_S)
    return status


def figures_between(folder: JobFolder, before: Status | None) -> "JobFigures | None":
    """Return what the running job has counted before and after the tables were opened, if it is still the same job.

    Raises:
        Unavailable: It does not answer.
    """
    from expectations.evidence import JobFigures, PositionOfJob  # noqa: PLC0415 - as above

    job = running_job(folder)
    if job is None or before is None or before.totals is None or before.owner is None:
        return None
    after = _status(job)
    if after.pid != before.pid or after.totals is None or before.owner.state == "":
        return None
    least = _positions(before)
    return JobFigures(
        state=before.owner.state,
        since_seq=after.totals.first_seq,
        refused=(before.totals.refused, after.totals.refused),
        rejected=(before.totals.rejected, after.totals.rejected),
        positions=[
            PositionOfJob(*place, min(least[place], offset), max(least[place], offset))
            for place, offset in _positions(after).items()
            if place in least
        ],
    )


@contextlib.contextmanager
def log_to_compare(folder: JobFolder, settings: JobSettings) -> Iterator[KafkaOpsLog | None]:
    """Lend the ops topic of the running job, or of the Kafka that settings name; None: there is neither.

    Raises:
        Unavailable: Kafka does not answer.
        Invalid: There is no such topic.
    """
    job = running_job(folder)
    connection, prefix = settings.connection, settings.topic_prefix
    if connection is None and job is not None:
        connection, prefix = job.connection, job.prefix
    if connection is None:
        yield None
        return
    reach_kafka(connection)
    log = KafkaOpsLog(connection, log_of(connection, prefix))
    try:
        yield log
    finally:
        log.close()


def _status(job: JobFile, lanes: int = EVERY_LANE) -> Status:
    return ask(job, StatusRequest(limit=lanes), Status)


def _positions(status: Status) -> dict[tuple[str, int, str | None], int]:
    found: dict[tuple[str, int, str | None], int] = {}
    for queue in status.queues:
        found[queue.topic, queue.queue_id, None] = queue.commit_position
        found.update({(queue.topic, queue.queue_id, lane.group): lane.commit_offset for lane in queue.lanes})
    return found
