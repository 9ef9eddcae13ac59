"""Step 2, decode: records of the ops topic to commands, strictly. Nothing in a record can fail a micro-batch.

A record is *rejected* if no command can be read from it, or if it needs the signature of an admin key and has no valid
one. Its row keeps the coordinates, the reason and the first bytes of the value; the sender is answered if op_id and
reply_to can be read. A command with a value out of range is not rejected: it is decided, and refused there.
"""

import hashlib
from typing import Any, NamedTuple

import msgspec
import xxhash

from broker_state.audit import REJECTED_HEAD_BYTES, TEXT_CHARACTERS_MAX, RejectedRow, RejectReason
from broker_state.kernel.context.decision import OpRecord
from broker_state.kernel.validation import is_queue_name
from popstream.exchange.partitioner import partition_of
from popstream.wire.answer import Answer, encode_answer
from popstream.wire.command import (
    COMMAND_TYPES,
    WIRE_VERSION,
    AckEntry,
    AdminCommand,
    ChangeEntry,
    Command,
    Entry,
    EntryCommand,
    HandleRef,
    RejectEntry,
    ReturnClient,
    kind_of,
)
from popstream.wire.decode_errors import DECODE_ERRORS
from popstream.wire.handle import Signer
from popstream.wire.limits import ENTRIES_MAX, RECORD_BYTES_MAX
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason, code_of
from popstream.wire.signing import OperationVerifier

__all__ = [
    "Decoder",
    "KafkaRecord",
    "Rejected",
    "reject_quarantined",
]

_ROUTES_MAX = 100_000

# Stands for an entry that cannot be read, by the type of its record: it names no handle and no message.
_UNREADABLE: dict[str, Entry] = {
    "ack": AckEntry(-1, []),
    "change_invisible": ChangeEntry(-1, [], 0),
    "reject": RejectEntry(-1, []),
}
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_entries = msgspec.json.Decoder(list[msgspec.Raw]).decode


class KafkaRecord(NamedTuple):
    """One record as read by Spark; sorts by (partition, Kafka offset).

    Attributes:
        value: Of a value over the cap, its first `REJECTED_HEAD_BYTES`; None also for a long value not read yet.
        value_bytes: Length of the whole value.
        value_sha256: Hash of the whole value, only if it is over the cap.
    """

    partition: int
    kafka_offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    value_bytes: int
    value_sha256: str | None = None


_ANSWERED = {
    RejectReason.UNKNOWN_VERSION: Reason.NOT_SUPPORTED,
    RejectReason.UNKNOWN_TYPE: Reason.NOT_SUPPORTED,
    RejectReason.NOT_SIGNED: Reason.NO_PERMISSION,
    RejectReason.BAD_SIGNATURE: Reason.NO_PERMISSION,
}
"""The reason in the answer; INVALID_PARAMETER to all others."""


class Rejected(NamedTuple):
    """A record without a command: its place, its audit row, the encoded answer if its sender can be answered."""

    partition: int
    kafka_offset: int
    row: RejectedRow
    reply_to: int | None
    answer: bytes | None


class Decoder:
    """Decodes records of an ops topic.

    Args:
        partition_count: Partitions of the topic; a record on another partition than its queue's is misrouted.
        signer: Checks the signatures of handles; None: handles are not signed.
        verifier: Checks the signatures of operations on queues and groups; None: they need none.
    """

    def __init__(
        self, partition_count: int, signer: Signer | None = None, verifier: OperationVerifier | None = None
    ) -> None:
        self._partition_count = partition_count
        self._signer = signer
        self._verifier = verifier
        self._decode = msgspec.json.Decoder(Command).decode
        self._routes: dict[QueueName, tuple[bytes, int]] = {}

    def decode(self, record: KafkaRecord) -> OpRecord | Rejected:
        """Return the command of a record, or why it has none."""
        partition, kafka_offset, timestamp_ms, key, value, value_bytes, _ = record
        if value_bytes > RECORD_BYTES_MAX:
            return _reject(record, RejectReason.TOO_LARGE, f"{value_bytes} bytes, the cap is {RECORD_BYTES_MAX}")
        if not value:
            return _reject(record, RejectReason.EMPTY, "no value")
        try:
            command = self._decode(value)
        except DECODE_ERRORS as error:
            entry_by_entry = self._decode_entry_by_entry(value)
            if entry_by_entry is None:
                detail = str(error)[:TEXT_CHARACTERS_MAX]  # it may quote the whole value
                return _reject_unreadable(record, value, detail)
            command = entry_by_entry
        forged: frozenset[int] = frozenset()
        forbidden, admin_key = "", None
        if self._signer is not None and isinstance(command, EntryCommand):
            command, forged = _verify(command, self._signer, timestamp_ms)
        elif self._verifier is not None and isinstance(command, AdminCommand):
            try:
                admin_key = _admin_key(command, record, value, self._verifier)
            except _NotPermittedError as error:
                # A consumer may ask for what it held when it was killed: it does not know that the job has keys.
                if error.reason is not RejectReason.NOT_SIGNED or not isinstance(command, ReturnClient):
                    return _reject(record, error.reason, str(error), msgspec.json.decode(value))
                forbidden = str(error)
        route = self._routes.get((command.topic, command.queue_id)) or self._route(command.topic, command.queue_id)
        misrouted = "" if route == (key, partition) else _misrouted(record, *route)
        digest = xxhash.xxh3_64_digest(value)
        return OpRecord(partition, kafka_offset, timestamp_ms, command, digest, misrouted, forged, forbidden, admin_key)

    def _decode_entry_by_entry(self, value: bytes) -> Command | None:
        """Decode a command of which only some entries cannot be read; None if anything else cannot.

        Entries that cannot be read are replaced by ones that name no handle: the kernel refuses each of them as a run
        of its own (INVALID_PARAMETER), and decides the others.
        """
        try:
            fields = _decode_fields(value)
            unreadable = _UNREADABLE[msgspec.json.decode(fields["type"])]
            raw_entries = _decode_entries(fields["entries"])
            if len(raw_entries) > ENTRIES_MAX:
                return None
            entries = [_decode_entry(entry, unreadable) for entry in raw_entries]
            command: Command = self._decode(msgspec.json.encode({**fields, "entries": []}))
        except (*DECODE_ERRORS, KeyError, TypeError):
            return None
        return msgspec.structs.replace(command, entries=entries)

    def _route(self, topic: str, queue_id: int) -> tuple[bytes, int]:
        """Return the key and the partition of the records of a queue, and keep them."""
        # Not `ops_key`, which raises for names that no queue can have: the kernel refuses those.
        key = f"{topic}\0{queue_id}".encode()
        route = (key, partition_of(key, self._partition_count))
        # A name that no queue can have may be as long as a record.
        if len(self._routes) < _ROUTES_MAX and is_queue_name(topic, queue_id):
            self._routes[topic, queue_id] = route
        return route


def _misrouted(record: KafkaRecord, key: bytes, partition: int) -> str:
    """Return what is wrong with the place of a record, which is not the key and the partition of its queue."""
    if key != record.key:
        return "the key of the record must be the topic, a zero byte, and the queue id in decimal"
    return (
        f"the record is on partition {record.partition}, and its key belongs on {partition}: by murmur2, as in"
        " Kafka's Java producer (librdkafka: partitioner=murmur2_random)"
    )


def _verify(command: EntryCommand, signer: Signer, at_ms: int) -> tuple[EntryCommand, frozenset[int]]:
    """Return the command with unsigned handles, as the kernel knows them, and the indexes of forged handles."""
    handles = []
    forged = set()
    is_needed = signer.is_needed(at_ms)
    for index, ref in enumerate(command.handles):
        unsigned = signer.verify(ref.handle, at_ms)
        if unsigned is None and is_needed:
            forged.add(index)
        handles.append(HandleRef(ref.group, unsigned if unsigned is not None else ref.handle))
    return msgspec.structs.replace(command, handles=handles), frozenset(forged)


class _NotPermittedError(ValueError):
    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _admin_key(command: AdminCommand, record: KafkaRecord, value: bytes, verifier: OperationVerifier) -> str | None:
    """Return the id of the key that signed an operation; None: it is from a time without keys.

    Raises:
        _NotPermittedError: It has no valid signature.
    """
    if not verifier.is_needed(record.timestamp_ms):
        return None
    kind = kind_of(command)
    if command.signature is None:
        raise _NotPermittedError(RejectReason.NOT_SIGNED, f"{kind} needs the signature of an admin key")
    if command.op_id is None:  # a copy could not be told from it
        raise _NotPermittedError(RejectReason.BAD_SIGNATURE, f"a signed {kind} needs an op_id")
    try:
        return verifier.key_of(command.signature, value, record.timestamp_ms)
    except ValueError as error:
        raise _NotPermittedError(RejectReason.BAD_SIGNATURE, f"{kind}: {error}") from error


def _decode_entry(raw: msgspec.Raw, unreadable: Entry) -> Entry:
    try:
        return msgspec.json.decode(raw, type=type(unreadable))
    except DECODE_ERRORS:
        return unreadable


def reject_quarantined(record: KafkaRecord, why: str) -> Rejected:
    """Reject a record because deciding it raised `why`."""
    try:
        value = msgspec.json.decode(record.value or b"")
    except DECODE_ERRORS:
        value = None
    return _reject(record, RejectReason.QUARANTINED, why, value if isinstance(value, dict) else {})


def _reject_unreadable(record: KafkaRecord, value: bytes, error: str) -> Rejected:
    """Reject a record whose value could not be decoded, for the most specific reason."""
    try:
        fields = msgspec.json.decode(value)
    except DECODE_ERRORS:
        return _reject(record, RejectReason.NOT_JSON, error)
    if not isinstance(fields, dict):
        return _reject(record, RejectReason.NOT_AN_OBJECT, f"a JSON {type(fields).__name__}")
    version, kind = fields.get("v"), fields.get("type")
    if type(version) is int and version != WIRE_VERSION:
        return _reject(record, RejectReason.UNKNOWN_VERSION, f"version {version}, known: {WIRE_VERSION}", fields)
    if isinstance(kind, str) and kind not in COMMAND_TYPES:
        return _reject(record, RejectReason.UNKNOWN_TYPE, f"type {kind[:64]!r}", fields)
    return _reject(record, RejectReason.BAD_FIELD, error, fields)


def _reject(record: KafkaRecord, reason: RejectReason, detail: str, fields: dict[str, Any] | None = None) -> Rejected:
    """Reject a record, and answer its sender if `op_id` and `reply_to` can be read from `fields`."""
    op_id = reply_to = answer = None
    if fields and isinstance(fields.get("op_id"), str) and fields["op_id"] and type(fields.get("reply_to")) is int:
        op_id, reply_to = fields["op_id"][:TEXT_CHARACTERS_MAX], fields["reply_to"]
        answer = encode_answer(_answer_to_rejected(op_id, fields, reason, detail, record.timestamp_ms))
    value = record.value or b""
    row = RejectedRow(
        partition=record.partition,
        kafka_offset=record.kafka_offset,
        ordinal=0,
        now_ms=record.timestamp_ms,
        reason=reason,
        detail=detail[:TEXT_CHARACTERS_MAX],
        value_bytes=record.value_bytes,
        value_sha256=record.value_sha256 or hashlib.sha256(value).hexdigest(),
        value_head=value[:REJECTED_HEAD_BYTES],
        op_id=op_id,
        reply_to=reply_to,
    )
    return Rejected(record.partition, record.kafka_offset, row, reply_to, answer)


def _answer_to_rejected(
    op_id: str, fields: dict[str, Any], reject_reason: RejectReason, detail: str, now_ms: int
) -> Answer:
    """Answer a rejected record, with those of its fields that can be read."""
    reason = _ANSWERED.get(reject_reason, Reason.INVALID_PARAMETER)
    kind, topic, queue_id = fields.get("type"), fields.get("topic"), fields.get("queue_id")
    return Answer(
        op_id=op_id,
        type=kind[:TEXT_CHARACTERS_MAX] if isinstance(kind, str) else "",
        code=code_of(reason),
        reason=reason,
        applied=False,
        topic=topic[:TEXT_CHARACTERS_MAX] if isinstance(topic, str) else "",
        queue_id=queue_id if type(queue_id) is int else -1,
        now_ms=now_ms,
        detail=f"{reject_reason}: {detail}",
    )
