"""Step 1, decode: bytes of the ops topic to commands, strictly. Nothing in a record can fail a micro-batch.

*Rejected* means that no command can be read; the row keeps the coordinates, the reason and the head of the value, and
the sender is answered when its op_id and reply_to can be read. A command whose values are out of range is no matter of
this step: it is decided and refused.
"""

import enum
import hashlib
from typing import NamedTuple

import msgspec
import xxhash

from broker_state.audit import RejectedRow
from broker_state.kernel.decision import OpRecord
from broker_state.kernel.validation import is_queue_name
from popstream.exchange.partitioner import partition_of
from popstream.wire.command import (
    COMMAND_TYPES,
    WIRE_VERSION,
    AckEntry,
    ChangeEntry,
    Command,
    Entry,
    EntryCommand,
    HandleRef,
    RejectEntry,
)
from popstream.wire.handle import Signer
from popstream.wire.limits import ENTRIES_MAX

__all__ = [
    "RECORD_BYTES_MAX",
    "VALUE_HEAD_BYTES",
    "Decoder",
    "KafkaRecord",
    "RejectReason",
    "Rejected",
    "reject_quarantined",
]

RECORD_BYTES_MAX = 4 * 1024 * 1024
"""The job's cap; the topic allows 16 MiB, so that a record over the cap becomes a row and not a lost send."""

VALUE_HEAD_BYTES = 4096

_TEXT_MAX = 512
# An entry that cannot be read, by the kind of its record: it names no handle and no message.
_UNREADABLE: dict[str, Entry] = {
    "ack": AckEntry(-1, []),
    "change_invisible": ChangeEntry(-1, [], 0),
    "reject": RejectEntry(-1, []),
}
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_entries = msgspec.json.Decoder(list[msgspec.Raw]).decode
_CODE_INVALID = 29
_CODE_NOT_SUPPORTED = 3


class KafkaRecord(NamedTuple):
    """One record as Spark hands it over. Of a value over the cap only the head came, with size and hash."""

    partition: int
    kafka_offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    value_bytes: int
    value_sha256: str | None = None


class RejectReason(enum.StrEnum):
    """Why no command can be read."""

    TOO_LARGE = "TOO_LARGE"
    EMPTY = "EMPTY"
    NOT_JSON = "NOT_JSON"
    NOT_AN_OBJECT = "NOT_AN_OBJECT"
    UNKNOWN_VERSION = "UNKNOWN_VERSION"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    BAD_FIELD = "BAD_FIELD"
    QUARANTINED = "QUARANTINED"


class Rejected(NamedTuple):
    """A row for the table, and the answer if somebody can be answered."""

    row: RejectedRow
    reply_to: int | None
    answer: bytes | None


class Decoder:
    """Decodes records of an ops topic with `partition_count` partitions; checks handles when there is a `signer`."""

    def __init__(self, partition_count: int, signer: Signer | None = None) -> None:
        self._partition_count = partition_count
        self._signer = signer
        self._decode = msgspec.json.Decoder(Command).decode
        self._routes: dict[tuple[str, int], tuple[bytes, int]] = {}

    def decode(self, record: KafkaRecord) -> OpRecord | Rejected:
        """The record as a command to decide, or why there is none in it."""
        value = record.value
        if record.value_bytes > RECORD_BYTES_MAX:
            return _reject(record, RejectReason.TOO_LARGE, f"{record.value_bytes} bytes, the cap is {RECORD_BYTES_MAX}")
        if not value:
            return _reject(record, RejectReason.EMPTY, "no value")
        try:
            command = self._decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            entry_by_entry = self._decode_entry_by_entry(value)
            if entry_by_entry is None:
                return _explain(record, value, str(error)[:_TEXT_MAX])  # it may quote all of a value
            command = entry_by_entry
        forged: frozenset[int] = frozenset()
        if self._signer is not None and isinstance(command, EntryCommand):
            command, forged = self._verify(command, self._signer)
        return OpRecord(
            record.partition,
            record.kafka_offset,
            record.timestamp_ms,
            command,
            xxhash.xxh3_64_digest(value),
            self._is_misrouted(record, command.topic, command.queue_id),
            forged,
        )

    def _decode_entry_by_entry(self, value: bytes) -> Command | None:
        """The command in `value` where nothing but some of its entries cannot be read; those name no handle.

        So the kernel refuses them, each as its own run (INVALID_PARAMETER), and decides the others.
        """
        try:
            fields = _decode_fields(value)
            unreadable = _UNREADABLE[msgspec.json.decode(fields["type"])]
            raw_entries = _decode_entries(fields["entries"])
            if len(raw_entries) > ENTRIES_MAX:
                return None
            entries = [_read_entry(entry, unreadable) for entry in raw_entries]
            command: Command = self._decode(msgspec.json.encode({**fields, "entries": []}))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
            return None
        return msgspec.structs.replace(command, entries=entries)

    def _is_misrouted(self, record: KafkaRecord, topic: str, queue_id: int) -> bool:
        route = self._routes.get((topic, queue_id))
        if route is None:
            # Not `ops_key`, which refuses names that no queue can have: they are the kernel's to refuse.
            key = f"{topic}\0{queue_id}".encode()
            route = (key, partition_of(key, self._partition_count))
            # Names that no queue can have may be as long as a record.
            if len(self._routes) < 100_000 and is_queue_name(topic, queue_id):
                self._routes[topic, queue_id] = route
        return route != (record.key, record.partition)

    def _verify(self, command: EntryCommand, signer: Signer) -> tuple[EntryCommand, frozenset[int]]:
        """The command with its handles as the kernel knows them, and which of them are forged."""
        handles = []
        forged = set()
        for index, ref in enumerate(command.handles):
            unsigned = signer.verify(ref.handle)
            if unsigned is None:
                forged.add(index)
            handles.append(HandleRef(ref.group, unsigned if unsigned is not None else ref.handle))
        return msgspec.structs.replace(command, handles=handles), frozenset(forged)


def _read_entry(raw: msgspec.Raw, unreadable: Entry) -> Entry:
    try:
        return msgspec.json.decode(raw, type=type(unreadable))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return unreadable


def reject_quarantined(record: KafkaRecord, why: str) -> Rejected:
    """A record that may be read and cannot be decided: `why` is what deciding it raised."""
    return _explain(record, record.value or b"", why, RejectReason.QUARANTINED)


def _explain(record: KafkaRecord, value: bytes, detail: str, known: RejectReason | None = None) -> Rejected:
    """Say which of the reasons it is, unless that is known, and find out whom to answer."""
    try:
        parsed = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _reject(record, known or RejectReason.NOT_JSON, detail)
    if not isinstance(parsed, dict):
        return _reject(record, known or RejectReason.NOT_AN_OBJECT, f"a JSON {type(parsed).__name__}")
    reason = known or RejectReason.BAD_FIELD
    version, kind = parsed.get("v"), parsed.get("type")
    if known is not None:
        pass
    elif type(version) is int and version != WIRE_VERSION:
        reason, detail = RejectReason.UNKNOWN_VERSION, f"version {version}, known: {WIRE_VERSION}"
    elif isinstance(kind, str) and kind not in COMMAND_TYPES:
        reason, detail = RejectReason.UNKNOWN_TYPE, f"type {kind[:64]!r}"
    op_id, reply_to = parsed.get("op_id"), parsed.get("reply_to")
    if not isinstance(op_id, str) or not op_id or type(reply_to) is not int:
        return _reject(record, reason, detail)
    unknown = reason in {RejectReason.UNKNOWN_VERSION, RejectReason.UNKNOWN_TYPE}
    answer = msgspec.json.encode(
        {
            "op_id": op_id[:_TEXT_MAX],
            "type": kind[:_TEXT_MAX] if isinstance(kind, str) else "",
            "code": _CODE_NOT_SUPPORTED if unknown else _CODE_INVALID,
            "reason": "NOT_SUPPORTED" if unknown else "INVALID_PARAMETER",
            "applied": False,
            "topic": parsed["topic"][:_TEXT_MAX] if isinstance(parsed.get("topic"), str) else "",
            "queue_id": parsed["queue_id"] if type(parsed.get("queue_id")) is int else -1,
            "now_ms": record.timestamp_ms,
            "detail": f"{reason}: {detail}",
        }
    )
    return _reject(record, reason, detail, op_id, reply_to, answer)


def _reject(
    record: KafkaRecord,
    reason: RejectReason,
    detail: str,
    op_id: str | None = None,
    reply_to: int | None = None,
    answer: bytes | None = None,
) -> Rejected:
    value = record.value or b""
    row = RejectedRow(
        partition=record.partition,
        kafka_offset=record.kafka_offset,
        ordinal=0,
        now_ms=record.timestamp_ms,
        reason=reason,
        detail=detail[:_TEXT_MAX],
        value_bytes=record.value_bytes,
        value_sha256=record.value_sha256 or hashlib.sha256(value).hexdigest(),
        value_head=value[:VALUE_HEAD_BYTES],
        op_id=None if op_id is None else op_id[:_TEXT_MAX],
        reply_to=reply_to,
    )
    return Rejected(row, reply_to, answer)
