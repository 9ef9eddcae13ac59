"""The log of consume queues: what becomes of the logs of message topics, as records of `<prefix>.cluster_queue_log`.

    key    ops_key(topic, queue id): the records of a queue are in one partition, in their order
    value  MessagePack of Began, Scanned or Truncated

Message topics are deleted, made again, truncated and compacted while they are read; this log only grows. So units are
a function of it, however often a task is repeated. A record may come again, or late: what is scanned already changes
nothing, and a record of another topic id is about a topic that is gone. Only where a log was truncated, a record that
an abandoned task wrote before, and that comes after, would be taken for a new one.
"""

import msgspec

from popstream.wire.command import QueueType

__all__ = ["Began", "LogRecord", "Scanned", "Truncated", "decode_log_record", "encode_log_record"]


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
