"""The entries of a decision; answers are signed and framed here, as they will be sent (entry.py: layout)."""

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from broker_state.kernel.context.decision import Decision
from broker_state.store.value_format import CorruptValueError
from connectors.bounded_lists import bounded_lists
from connectors.delta.rows import encode_slices
from connectors.delta.tables import AUDIT_TABLES
from pipelines.decide_ops.decode import Rejected
from pipelines.decide_ops.entry import ENTRY_BYTES_MAX, Entry, EntryKind, LogPlace, PlacedEntry
from popstream.exchange.partitioner import ops_key
from popstream.wire.answer import DIVIDED_LISTS, Answer, encode_answer
from popstream.wire.decode_errors import DECODE_ERRORS
from popstream.wire.handle import Signer
from popstream.wire.notification import Notification

__all__ = [
    "TABLE_NUMBERS",
    "entries_of",
    "placed_entries",
    "read_frame",
    "read_notifications",
    "read_slice",
    "rows_by_table",
]

TABLE_NUMBERS = {table: number for number, table in enumerate(AUDIT_TABLES)}

_FRAME_HEAD, _FRAME_TAIL = b'{"v":1,"answers":[', b"]}"
_FRAME_BYTES_MAX = ENTRY_BYTES_MAX - 64
_PAIR_OVERHEAD_BYTES = 16
_PARTITION = struct.Struct(">I")
_TABLE_NAMES = list(AUDIT_TABLES)
_decode_answer = msgspec.json.Decoder(Answer).decode


def entries_of(
    decision: Decision,
    rejected: Sequence[Rejected],
    apply_seq: int,
    *,
    results_partitions: int,
    signer: Signer | None,
) -> list[Entry]:
    """Return the entries of one WriteBatch.

    Args:
        decision: Of its operations.
        rejected: Its records that could not be read.
        apply_seq: Its number.
        results_partitions: Partition count of the results topic; answers to other partitions are dropped.
        signer: Signs the handles in answers; None leaves them unsigned.
    """
    entries: list[Entry] = []
    numbers: Counter[int] = Counter()
    for kind, value, _ in placed_entries(decision, rejected, results_partitions=results_partitions, signer=signer):
        entries.append(Entry(kind, apply_seq, numbers[kind], value))
        numbers[kind] += 1
    return entries


def placed_entries(
    decision: Decision, rejected: Sequence[Rejected], *, results_partitions: int, signer: Signer | None
) -> Iterator[PlacedEntry]:
    """Yield the entries of a decision without a number, for a runner that has the log as the order of what leaves.

    Args:
        decision: Of its operations.
        rejected: Its records that could not be read.
        results_partitions: Partition count of the results topic; answers to other partitions are dropped.
        signer: Signs the handles in answers; None leaves them unsigned.
    """
    answers = [*decision.answers, *((r.reply_to, r.answer) for r in rejected if r.answer is not None)]
    for frame in _frames(answers, results_partitions, signer):
        yield PlacedEntry(EntryKind.ANSWERS, frame)
    for notifications in _notifications(decision.notifications):
        yield PlacedEntry(EntryKind.NOTIFICATIONS, notifications)
    letters: Counter[int] = Counter()
    for letter in decision.dead_letters:
        letters[letter.kafka_offset] += 1
        end = LogPlace(letter.kafka_offset, letters[letter.kafka_offset])
        yield PlacedEntry(EntryKind.DEAD_LETTER, msgspec.msgpack.encode(letter), end)
    for table, rows in rows_by_table(decision, rejected).items():
        done = 0
        for count, data in encode_slices(table, rows):
            done += count
            last = rows[done - 1]
            yield PlacedEntry(
                EntryKind.AUDIT, bytes((TABLE_NUMBERS[table],)) + data, LogPlace(last.kafka_offset, last.ordinal + 1)
            )


def rows_by_table(decision: Decision, rejected: Sequence[Rejected]) -> dict[str, Sequence[Any]]:
    """Return the audit rows of a decision, by table."""
    return {
        "operations": decision.operations,
        "deliveries": decision.deliveries,
        "commit_positions": decision.commit_positions,
        "rejected": [each.row for each in rejected],
        "order_info": decision.order_info,
    }


def read_frame(value: bytes) -> tuple[int, bytes]:
    """Return (results partition, record value) of an entry of answers.

    Raises:
        CorruptValueError: The entry is too short.
    """
    if len(value) < _PARTITION.size:
        raise CorruptValueError("frame of answers", value)
    return _PARTITION.unpack_from(value)[0], value[_PARTITION.size :]


def read_slice(value: bytes) -> tuple[str, bytes]:
    """Return (table, Arrow slice) of an entry of audit rows.

    Raises:
        CorruptValueError: The entry is empty, or of an unknown table.
    """
    if not value or value[0] >= len(_TABLE_NAMES):
        raise CorruptValueError("slice of rows", value)
    return _TABLE_NAMES[value[0]], value[1:]


def read_notifications(value: bytes) -> list[tuple[bytes, bytes]]:
    """Return (key, value) of each record in an entry of notifications.

    Raises:
        CorruptValueError: The entry cannot be decoded.
    """
    try:
        return msgspec.msgpack.decode(value, type=list[tuple[bytes, bytes]])
    except DECODE_ERRORS as error:
        raise CorruptValueError("notifications", value) from error


def _frames(
    answers: Iterable[tuple[int | None, bytes]], results_partitions: int, signer: Signer | None
) -> Iterator[bytes]:
    """Yield one frame per reply partition, or more if it would be too long."""
    by_partition: dict[int, list[bytes]] = defaultdict(list)
    for reply_to, answer in answers:
        if reply_to is None or not 0 <= reply_to < results_partitions:
            continue
        if signer is None and len(answer) <= _FRAME_BYTES_MAX:
            by_partition[reply_to].append(answer)
        else:
            by_partition[reply_to] += _parts(answer, signer)
    for partition, parts in by_partition.items():
        # A comma behind each part but the last one of a frame.
        for packed in bounded_lists(parts, len, _FRAME_BYTES_MAX + 1, more_bytes=1):
            yield _PARTITION.pack(partition) + _FRAME_HEAD + b",".join(packed) + _FRAME_TAIL


def _parts(encoded: bytes, signer: Signer | None) -> list[bytes]:
    """Return an answer with signed handles, in parts if it is too long for a frame."""
    answer = _decode_answer(encoded)
    if signer is not None and (answer.handle is not None or answer.handles):
        answer = _signed(answer, signer)
        encoded = encode_answer(answer)
    return [encoded] if len(encoded) <= _FRAME_BYTES_MAX else _split(answer)


def _signed(answer: Answer, signer: Signer) -> Answer:
    return msgspec.structs.replace(
        answer,
        handle=None if answer.handle is None else signer.sign(answer.handle),
        handles=[signer.sign(handle) for handle in answer.handles],
    )


def _split(answer: Answer) -> list[bytes]:
    """Return an answer too long for a frame as parts: each has a share of every list, in order."""
    items = max(len(answer.commit_offsets), *(len(getattr(answer, name)) for name in DIVIDED_LISTS))
    count = 2
    while True:
        assert count < 2 * items, f"an answer with lists of {items} items at most is too long: its texts are"
        parts = [_part(answer, index, count) for index in range(count)]
        if all(len(part) <= _FRAME_BYTES_MAX for part in parts):
            return parts
        count *= 2


def _part(answer: Answer, index: int, count: int) -> bytes:
    def share(items: list[Any]) -> list[Any]:
        return items[len(items) * index // count : len(items) * (index + 1) // count]

    shares: dict[str, Any] = {name: share(getattr(answer, name)) for name in DIVIDED_LISTS}
    commit_offsets = dict(share(list(answer.commit_offsets.items())))
    return encode_answer(
        msgspec.structs.replace(answer, part=index, parts=count, commit_offsets=commit_offsets, **shares)
    )


def _notifications(notifications: Iterable[Notification]) -> Iterator[bytes]:
    records = [
        (ops_key(each.topic, each.queue_id) + b"\0" + each.group.encode(), msgspec.json.encode(each))
        for each in notifications
    ]
    for packed in bounded_lists(
        records, lambda pair: len(pair[0]) + len(pair[1]) + _PAIR_OVERHEAD_BYTES, ENTRY_BYTES_MAX
    ):
        yield msgspec.msgpack.encode(packed)
