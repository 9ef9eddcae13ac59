"""A shadow of RocketMQ's pop record store (PopConsumerRocksdbStore, PopConsumerCache): one record a leased message.

A record's key is its visibility timeout (pop time plus invisible time), group and topic, queue and offset. So a change
to the time that a message has already writes the key that it deletes next, and the message is lost (issue 10276).
"""

from typing import Any, NamedTuple

__all__ = ["PopRecord", "RecordStore"]

_SLACK_MS = 50
_LOOK_BACK_MS = 3_000
_SCAN_MAX = 16_384

Message = tuple[str, str, int, int]
"""(group, real topic, queue id, offset)."""


class PopRecord(NamedTuple):
    """PopConsumerRecord, as far as it counts here."""

    pop_time_ms: int
    invisible_time_ms: int
    message: Message
    retry_flag: int = 0
    suspend: bool = False

    @property
    def visible_ms(self) -> int:
        """When the message is visible again."""
        return self.pop_time_ms + self.invisible_time_ms

    @property
    def key(self) -> tuple[int, bytes, int, int]:
        """The key, with the order of its bytes."""
        return _key(self.visible_ms, self.message)

    def plain(self) -> dict[str, Any]:
        """Under the names of the vectors."""
        _, topic, queue_id, offset = self.message
        return {
            "visibility_timeout": self.visible_ms,
            "pop_time": self.pop_time_ms,
            "invisible_time": self.invisible_time_ms,
            "topic": topic,
            "queue_id": queue_id,
            "offset": offset,
            "attempt_times": 0,
            "retry_flag": self.retry_flag,
        }


class RecordStore:
    """Records on disk, and those of the memory buffer when there is one; the revive loop's place in them."""

    def __init__(self, *, is_buffered: bool) -> None:
        self.is_buffered = is_buffered
        self.put_batches = 0
        self.delete_batches = 0
        self.cursor_ms = _LOOK_BACK_MS
        self._records: dict[tuple[int, bytes, int, int], PopRecord] = {}
        self._buffer: dict[Message, PopRecord] = {}

    def records(self) -> list[PopRecord]:
        """What is on disk, in the order of the keys."""
        return [self._records[key] for key in sorted(self._records)]

    def everything(self) -> list[PopRecord]:
        """What is on disk or in memory."""
        return sorted([*self._records.values(), *self._buffer.values()], key=lambda record: record.key)

    def add(self, records: list[PopRecord]) -> None:
        """A pop leased messages."""
        if self.is_buffered:
            self._buffer |= {record.message: record for record in records}
        elif records:
            self._put(records)

    def ack(self, message: Message, visible_ms: int) -> bool:
        """Delete the record with this time; one in memory whatever its time. Returns whether there was one."""
        if self._buffer.pop(message, None) is not None:
            return True
        return self._delete(_key(visible_ms, message))

    def change(self, record: PopRecord, old_visible_ms: int) -> tuple[bool, bool]:
        """Write `record`, then delete the old one. Returns whether there was an old one, and whether both are lost."""
        message = record.message
        old_key = _key(old_visible_ms, message)
        was_there = message in self._buffer or old_key in self._records
        self._put([record])
        if self._buffer.pop(message, None) is not None:
            return True, False
        self._delete(old_key)
        return was_there, record.key not in self._records

    def take_due(self, now_ms: int, count_max: int | None) -> list[PopRecord]:
        """One pass of the revive loop: the records that it takes, in the order of the keys."""
        lower_ms, upper_ms = self.cursor_ms - _LOOK_BACK_MS, now_ms - _SLACK_MS
        found = [record for record in self.records() if lower_ms <= record.visible_ms < upper_ms]
        del found[_SCAN_MAX if count_max is None else count_max :]
        for record in found:
            del self._records[record.key]
        self.delete_batches += bool(found)
        self.cursor_ms = found[-1].visible_ms if found else upper_ms
        return found

    def least_buffered(self, group: str, topic: str, queue_id: int) -> int | None:
        """The smallest offset of a queue that is in memory."""
        return min((message[3] for message in self._buffer if message[:3] == (group, topic, queue_id)), default=None)

    def forget_buffered(self, group: str, topic: str, queue_id: int) -> None:
        """Drop what is in memory of a queue."""
        for message in [message for message in self._buffer if message[:3] == (group, topic, queue_id)]:
            del self._buffer[message]

    def _put(self, records: list[PopRecord]) -> None:
        self._records |= {record.key: record for record in records}
        self.put_batches += 1

    def _delete(self, key: tuple[int, bytes, int, int]) -> bool:
        self.delete_batches += 1
        return self._records.pop(key, None) is not None


def _key(visible_ms: int, message: Message) -> tuple[int, bytes, int, int]:
    group, topic, queue_id, offset = message
    return visible_ms, f"{group}@{topic}".encode(), queue_id, offset
