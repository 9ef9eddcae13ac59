"""The log of consume queues: what becomes of the logs of message topics, as records of `<prefix>.cluster_queue_log`.

    key    ops_key(topic, queue id): the records of a queue are in one partition, in their order
    value  MessagePack of Began, Scanned or Truncated

Message topics are deleted, made again, truncated and compacted while they are read; this log only grows. So units are
a function of it, however often a task is repeated. A record may come again, or late: what is scanned already changes
nothing, and a record of another topic id is about a topic that is gone. Only where a log was truncated, a record that
an abandoned task wrote before, and that comes after, would be taken for a new one.

Offsets in the log name what is made of its records: the op_ids of operations, and the places of units in the table. If
the topic is deleted and made anew, they begin again from 0, and what is new would pass for what was sent before. So
such a log is refused.
"""

from collections.abc import Mapping, Sequence

import msgspec

from checkpoints.reconcile import LogFound, lost_end
from popstream.wire.base_errors import Corrupt
from popstream.wire.command import QueueType

__all__ = [
    "Began",
    "LogRecord",
    "Scanned",
    "Truncated",
    "decode_log_record",
    "encode_log_record",
    "made_anew",
    "require_same_queue_log",
]


class Began(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """A queue is there, with this type, and its log begins at `start`."""

    topic_id: str
    queue_type: QueueType
    start: int


class Scanned(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The offsets [first_offset, end_offset) were read: those of `rows` (Arrow, UNIT_SCHEMA) have records."""

    topic_id: str
    first_offset: int
    end_offset: int
    rows: bytes = b""


class Truncated(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The log has lost `end_offset` and all after it; other records follow."""

    topic_id: str
    end_offset: int


LogRecord = Began | Scanned | Truncated

encode_log_record = msgspec.msgpack.Encoder().encode
decode_log_record = msgspec.msgpack.Decoder(LogRecord).decode


def require_same_queue_log(taken: Mapping[int, int], log: LogFound) -> None:
    """Refuse a log that ends below what was taken of it.

    Args:
        taken: By partition, the offset after the last record that a committed micro-batch has taken.
        log: The log, as found.

    Raises:
        Corrupt: It is another one, or has lost its end.
    """
    if lost := lost_end(taken, log):
        raise made_anew(f"{log.topic} ends below what was taken of it", log.topic, lost)


def made_anew(what: str, subject: str, details: Sequence[str] = ()) -> Corrupt:
    """Return the error that says what to do with a log that gives its offsets a second time."""
    message = (
        f"{what}: the topic was deleted and made anew, and new units would pass for written ones. Start the job once"
        " without message_topics, and stop it by SIGTERM; then begin a new checkpoint by `popstream snapshot` and"
        " `popstream migrate to-cluster --snapshot`, with tables of its own, for which all queues are built again"
    )
    return Corrupt(message, subject=subject, details=details)
