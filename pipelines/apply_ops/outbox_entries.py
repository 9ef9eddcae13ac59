"""Step 5, the outbox part: a decision as entries, answers already in the frames that will be sent."""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from broker_state.kernel.decision import Decision
from broker_state.store.stored import CorruptValueError
from connectors.delta.rows import encode_rows
from connectors.delta.tables import AUDIT_TABLES
from pipelines.apply_ops.decode import Rejected
from pipelines.apply_ops.outbox import ENTRY_BYTES_MAX, Entry, EntryKind
from popstream.exchange.partitioner import ops_key
from popstream.wire.answer import Answer
from popstream.wire.decoding import DECODE_ERRORS
from popstream.wire.handle import Signer
from popstream.wire.notification import Notification

__all__ = ["TABLE_NUMBERS", "entries_of", "read_frame", "read_notifications", "read_slice", "rows_by_table"]

_FRAME_HEAD, _FRAME_TAIL = b'{"v":1,"answers":[', b"]}"
_FRAME_BYTES = ENTRY_BYTES_MAX - 64
_LISTS = ("messages", "runs", "released")
_PARTITION = struct.Struct(">I")
_decode_answer = msgspec.json.Decoder(Answer).decode

TABLE_NUMBERS = {table: number for number, table in enumerate(AUDIT_TABLES)}
_TABLE_NAMES = list(AUDIT_TABLES)


def entries_of(
    decision: Decision,
    rejected: Sequence[Rejected],
    apply_seq: int,
    *,
    results_partitions: int,
    signer: Signer | None,
) -> list[Entry]:
    """Everything that is to leave the job because of one micro-batch."""
    entries: list[Entry] = []

    def add(kind: int, values: Iterable[bytes]) -> None:
        entries.extend(Entry(kind, apply_seq, number, value) for number, value in enumerate(values))

    answers = [*decision.answers, *((r.reply_to, r.answer) for r in rejected if r.answer is not None)]
    add(EntryKind.ANSWERS, _frames(answers, results_partitions, signer))
    add(EntryKind.NOTIFICATIONS, _notifications(decision.notifications))
    add(EntryKind.DEAD_LETTER, (msgspec.msgpack.encode(letter) for letter in decision.dead_letters))
    add(
        EntryKind.AUDIT,
        (
            bytes((TABLE_NUMBERS[table],)) + data
            for table, rows in rows_by_table(decision, rejected).items()
            if rows
            for data in encode_rows(table, rows, ENTRY_BYTES_MAX - 1)
        ),
    )
    return entries


def rows_by_table(decision: Decision, rejected: Sequence[Rejected]) -> dict[str, Sequence[Any]]:
    """The audit rows of a decision."""
    return {
        "operations": decision.operations,
        "deliveries": decision.deliveries,
        "commit_positions": decision.commit_positions,
        "rejected": [each.row for each in rejected],
        "order_info": decision.order_info,
    }


def read_frame(value: bytes) -> tuple[int, bytes]:
    """(results partition, record value) of an entry of answers."""
    if len(value) < _PARTITION.size:
        raise CorruptValueError("frame of answers", value)
    return _PARTITION.unpack_from(value)[0], value[_PARTITION.size :]


def read_slice(value: bytes) -> tuple[str, bytes]:
    """(table, Arrow slice) of an entry of audit rows."""
    if not value or value[0] >= len(_TABLE_NAMES):
        raise CorruptValueError("slice of rows", value)
    return _TABLE_NAMES[value[0]], value[1:]


def read_notifications(value: bytes) -> list[tuple[bytes, bytes]]:
    """(key, value) of each record of an entry of notifications."""
    try:
        return msgspec.msgpack.decode(value, type=list[tuple[bytes, bytes]])
    except DECODE_ERRORS as error:
        raise CorruptValueError("notifications", value) from error


def _frames(
    answers: Iterable[tuple[int | None, bytes]], results_partitions: int, signer: Signer | None
) -> Iterator[bytes]:
    """One frame for each reply partition, more when it would be too long; nobody reads other partitions."""
    by_partition: dict[int, list[bytes]] = defaultdict(list)
    for reply_to, answer in answers:
        if reply_to is not None and 0 <= reply_to < results_partitions:
            by_partition[reply_to].append(answer)
    for partition, parts in by_partition.items():
        head = _PARTITION.pack(partition)
        frame: list[bytes] = []
        size = 0
        for answer in parts:
            signed = answer if signer is None else _sign(answer, signer)
            for part in [signed] if len(signed) <= _FRAME_BYTES else _split(signed):
                if frame and size + len(part) > _FRAME_BYTES:
                    yield head + _FRAME_HEAD + b",".join(frame) + _FRAME_TAIL
                    frame, size = [], 0
                frame.append(part)
                size += len(part) + 1
        yield head + _FRAME_HEAD + b",".join(frame) + _FRAME_TAIL


def _sign(answer: bytes, signer: Signer) -> bytes:
    if b'"handle' not in answer:
        return answer
    value = _decode_answer(answer)
    return msgspec.json.encode(
        msgspec.structs.replace(
            value,
            handle=None if value.handle is None else signer.sign(value.handle),
            handles=[signer.sign(handle) for handle in value.handles],
        )
    )


def _split(answer: bytes) -> list[bytes]:
    """An answer too long for a frame as parts; each list is shared out, the parts' lists joined give it again."""
    value = _decode_answer(answer)
    items = max(len(value.commit_offsets), *(len(getattr(value, name)) for name in (*_LISTS, "handles")))
    count = 2
    while True:
        assert count < 2 * items, f"an answer of {len(answer)} bytes has {items} items at most: its texts are too long"
        parts = [_part(value, index, count) for index in range(count)]
        if all(len(part) <= _FRAME_BYTES for part in parts):
            return parts
        count *= 2


def _part(value: Answer, index: int, count: int) -> bytes:
    shares: dict[str, Any] = {"part": index, "parts": count}
    for name in (*_LISTS, "handles"):
        items = getattr(value, name)
        shares[name] = items[len(items) * index // count : len(items) * (index + 1) // count]
    offsets = list(value.commit_offsets.items())
    shares["commit_offsets"] = dict(offsets[len(offsets) * index // count : len(offsets) * (index + 1) // count])
    return msgspec.json.encode(msgspec.structs.replace(value, **shares))


def _notifications(notifications: Sequence[Notification]) -> Iterator[bytes]:
    records: list[tuple[bytes, bytes]] = []
    size = 0
    for notification in notifications:
        key = ops_key(notification.topic, notification.queue_id) + b"\0" + notification.group.encode()
        value = msgspec.json.encode(notification)
        if size + len(key) + len(value) + 16 > ENTRY_BYTES_MAX:
            yield msgspec.msgpack.encode(records)
            records, size = [], 0
        records.append((key, value))
        size += len(key) + len(value) + 16
    if records:
        yield msgspec.msgpack.encode(records)
