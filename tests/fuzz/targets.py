"""What is fuzzed. A target takes any bytes, and raises only when the product is wrong.

record_decoder    a record of the ops topic is a command or *rejected*, and what is answered can be read
handle_parser     a handle is read or it is none; a signature is ours or it is none
value_codecs      a stored value is read and written the same again, or refused as corrupt
settings_loader   a settings file gives settings, or says what is wrong
kernel            a history of operations gives the answers and the state of the reference model
"""

import functools
import json
import os
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self
from unittest.mock import patch

import msgspec

from broker_state.consume_queue import Block, ConsumeQueue
from broker_state.consume_queue.block import encode_block
from broker_state.consume_queue.columns import seal
from broker_state.consume_queue.key_filter import may_contain
from broker_state.consume_queue.summary import decode_page, encode_page
from broker_state.kernel.context.decision import OpRecord
from broker_state.kernel.context.order_info import MemberPage, OrderInfo
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from broker_state.store.pages import DeliveryPage, UnitFactsPage
from broker_state.store.segment import decode_segment, encode_segment
from broker_state.store.state_records import (
    LaneRecord,
    LaneUsage,
    LateSkip,
    OpLog,
    OpWindowEntry,
    ParkedPop,
    QueueRecord,
    QueueUsage,
    Text,
)
from checkpoints.applied import Applied
from checkpoints.replay import Replay
from connectors.delta.rows import decode_rows, encode_rows
from pipelines.cli import options
from pipelines.decide_ops.decode import Decoder, KafkaRecord, Rejected
from pipelines.decide_ops.entries import TABLE_NUMBERS, read_frame, read_notifications, read_slice
from pipelines.job_settings import JobSettings
from popstream.exchange.pending_operations import answers_of
from popstream.payload.inner_batch import InnerMessage, encode_inner_batch, unwrap
from popstream.wire.answer import Answer
from popstream.wire.base_errors import Corrupt, Invalid
from popstream.wire.command import AdminCommand, encode_command
from popstream.wire.handle import Handle, Signer, decode_handle, encode_handle
from popstream.wire.headers import BATCH_BASE_HEADER, BATCH_BYTES_HEADER, BATCH_COUNT_HEADER, BATCH_KEYS_HEADER
from popstream.wire.limits import RECORD_BYTES_MAX
from popstream.wire.signing import KeyRing, OperationVerifier
from tests.fuzz.byte_reader import ByteReader
from tests.fuzz.histories import compare_history

__all__ = [
    "CODECS",
    "OPS_TOPIC",
    "SIGNERS",
    "TARGETS",
    "VERIFIER",
    "Target",
    "handle_parser",
    "record_decoder",
    "settings_loader",
    "value_codecs",
]

Target = Callable[[bytes], None]

_KEYS = {"a": b"first secret of fuzz", "b": b"second secret"}
SIGNERS = {key_id: Signer(KeyRing.of(_KEYS, key_id)) for key_id in _KEYS}
"""One for each of the keys, all of which are good."""

OPS_TOPIC = "shop.ops"
VERIFIER = OperationVerifier(KeyRing.of(_KEYS, "a"), OPS_TOPIC)
"""Of operations, with the same keys."""

_PARTITIONS = 4
_decode_answer = msgspec.json.Decoder(Answer).decode


def record_decoder(data: bytes) -> None:
    """Flags u8, timestamp i64, length u8 of the key, key, value."""
    reader = ByteReader(data)
    flags, timestamp_ms = reader.byte(), reader.signed(8)
    key = reader.take(reader.byte())
    value = reader.rest()
    record = KafkaRecord(
        flags >> 4 & 3,
        7,
        timestamp_ms,
        None if flags & 1 else key,
        None if flags & 2 else value,
        RECORD_BYTES_MAX + 1 if flags & 4 else len(value),
    )
    # A decoder of its own: what one keeps of the records before would make an input fail that does not fail alone.
    found = Decoder(_PARTITIONS, SIGNERS["a"] if flags & 8 else None, VERIFIER if flags & 64 else None).decode(record)
    if isinstance(found, Rejected):
        assert (found.answer is None) == (found.reply_to is None) == (found.row.op_id is None)
        if found.answer is not None:
            json.loads(found.answer)
            assert _decode_answer(found.answer).op_id == found.row.op_id
        if zlib.crc32(data) % 32 == 0:  # takes a hundred times as long as all the rest
            assert decode_rows("rejected", encode_rows("rejected", [found.row])).num_rows == 1
        return
    assert isinstance(found, OpRecord)
    if flags & 64 and timestamp_ms >= 0 and isinstance(found.command, AdminCommand) and not found.forbidden:
        assert found.admin_key in _KEYS
        assert value.endswith(b'"}')
    encoded = encode_command(found.command)
    again = Decoder(_PARTITIONS).decode(record._replace(value=encoded, value_bytes=len(encoded)))
    assert isinstance(again, OpRecord)
    assert again.command == found.command
    assert again.misrouted == found.misrouted


def handle_parser(data: bytes) -> None:
    """How u8, then a text; or the payload of a handle, so that what lies behind base64 is met as well."""
    reader = ByteReader(data)
    how, rest = reader.byte() % 4, reader.rest()
    text = rest.decode(errors="replace")
    if how == 1:
        text = f"1.{urlsafe_b64encode(rest).rstrip(b'=').decode()}"
    elif how > 1:
        # The kernel's own handles have two parts, and none of them has any other letter.
        text = f"1.{urlsafe_b64encode(rest).rstrip(b'=').decode()}"
        signed = SIGNERS["a" if how == 2 else "b"].sign(text)
        assert SIGNERS["a"].verify(signed, 0) == text
        assert SIGNERS["a"].verify(signed[:-1], 0) is None
        text = signed
    handle = decode_handle(text)
    assert handle is None or isinstance(handle, Handle)
    if handle is not None:
        assert decode_handle(encode_handle(handle)) == handle
    unsigned = SIGNERS["a"].verify(text, 0)
    assert unsigned is None or isinstance(unsigned, str)
    if unsigned is not None:
        assert text in [signer.sign(unsigned) for signer in SIGNERS.values()]
        assert decode_handle(unsigned) == handle


class _Encodable(Protocol):
    def encode(self) -> bytes: ...

    @classmethod
    def decode(cls, value: bytes) -> Self: ...


def _record(kind: type[_Encodable]) -> Target:
    def check(value: bytes) -> None:
        found = kind.decode(value)
        assert kind.decode(found.encode()) == found

    return check


def _page(kind: type[DeliveryPage] | type[UnitFactsPage] | type[MemberPage]) -> Target:
    def check(value: bytes) -> None:
        found = kind.decode(value)
        again = kind.decode(found.encode())
        assert (again.page_no, again.runs) == (found.page_no, found.runs)
        assert again.encode() == found.encode()

    return check


def _order_info(value: bytes) -> None:
    stored = OrderInfo(Overlay(MemoryKv()), b"lane", value).encode()
    assert OrderInfo(Overlay(MemoryKv()), b"lane", stored).encode() == stored


def _segment(value: bytes) -> None:
    bits = decode_segment(value)
    stored = encode_segment(bits)
    assert len(stored) <= 513
    assert decode_segment(stored) == bits


def _block_as_columns(value: bytes) -> None:
    block = Block(3, value)
    scan = block.scan
    assert len(scan.units) == block.unit_count
    assert Block(3, encode_block(scan)).scan == scan


def _block(value: bytes) -> None:
    _block_as_columns(value)
    # Of what was written: under a digest made for them, numbers may pass 2 ** 63, where columns wrap and rows do not.
    block = Block(3, value)
    assert [block.unit(row) for row in range(block.unit_count)] == list(block.scan.units)


def _block_page(value: bytes) -> None:
    children = decode_page(3, value)
    assert decode_page(3, encode_page(children)) == children


def _key_filter(value: bytes) -> None:
    for key_hash in (0, 77, 0x1234_5678_9ABC_DEF0, 2**64 - 1):
        may_contain(value, key_hash)


def _inner_batch(value: bytes) -> None:
    """Count u8 (0xFF: any), then the MessagePack of the batch; headers that agree with it, or any."""
    reader = ByteReader(value)
    count = reader.byte()
    headers: list[tuple[str, bytes | None]] = []
    if count == 0xFF:
        headers = [
            (name, reader.take(reader.byte())) for name in (BATCH_COUNT_HEADER, BATCH_BYTES_HEADER, BATCH_KEYS_HEADER)
        ]
        headers.append((BATCH_BASE_HEADER, reader.take(reader.byte())))
        body = reader.rest()
    else:
        body = reader.rest()
        headers = [
            (BATCH_COUNT_HEADER, b"%d" % count),
            (BATCH_BYTES_HEADER, b"%d" % len(body)),
            (BATCH_BASE_HEADER, b"a1b2-a"),
        ]
    messages = unwrap(body, headers)
    assert messages is not None
    if not messages or any(abs(one.timestamp_ms) >= 1 << 63 for one in messages):
        return
    inner = [InnerMessage(one.value, one.timestamp_ms, one.key, one.headers) for one in messages]
    again, names = encode_inner_batch(inner, created_ms=0, ids=[one.message_id or "x-0" for one in messages])
    for one, other in zip(messages, unwrap(again, list(names)) or [], strict=True):
        assert (one.value, one.key, one.headers, one.timestamp_ms) == (
            other.value,
            other.key,
            other.headers,
            other.timestamp_ms,
        )


def _notifications(value: bytes) -> None:
    found = read_notifications(value)
    assert read_notifications(msgspec.msgpack.encode(found)) == found


def _slice(value: bytes) -> None:
    """Without the Arrow stream in it: that is pyarrow's to read, which ends the process for some damaged ones."""
    table, data = read_slice(value)
    assert bytes((TABLE_NUMBERS[table],)) + data == value


def _sealed(check: Target) -> Target:
    """`check` of bytes under their digest, which no fuzzer would find."""
    return lambda value: check(seal(value))


CODECS: dict[str, Target] = {
    "queue": _record(QueueRecord),
    "lane": _record(LaneRecord),
    "parked pop": _record(ParkedPop),
    "late skip": _record(LateSkip),
    "text": _record(Text),
    "op memory": _record(OpWindowEntry),
    "op log": _record(OpLog),
    "delivery page": _page(DeliveryPage),
    "unit facts page": _page(UnitFactsPage),
    "member page": _page(MemberPage),
    "order info": _order_info,
    "segment": _segment,
    "consume queue": _record(ConsumeQueue),
    "block": _block,
    "block, sealed": _sealed(_block_as_columns),
    "page of blocks": _block_page,
    "page of blocks, sealed": _sealed(_block_page),
    "key filter": _key_filter,
    "key filter, sealed": _sealed(_key_filter),
    "applied": _record(Applied),
    "inner batch": _inner_batch,
    "frame": read_frame,  # type: ignore[dict-item]  # what it gives is the bytes themselves
    "notifications": _notifications,
    "audit slice": _slice,
    "answers": answers_of,  # type: ignore[dict-item]  # of a client: what it cannot read is left out
    "replay": _record(Replay),
    "queue usage": _record(QueueUsage),
    "lane usage": _record(LaneUsage),
}
"""How a value of each kind is read and written again; new ones at the end, for an input names its codec by place."""

_CODECS = list(CODECS.values())


def value_codecs(data: bytes) -> None:
    """Codec u8, value. Corrupt is the one error that says which value cannot be read, and what to do."""
    try:
        _CODECS[data[0] % len(_CODECS) if data else 0](data[1:])
    except Corrupt:
        return


@functools.cache
def _settings_file() -> tuple[int, Path]:
    """A file without a disk."""
    descriptor = os.memfd_create("settings.toml")
    return descriptor, Path(f"/proc/self/fd/{descriptor}")


# Made once for the file: the class depends on the path alone, and takes 2 ms.
_settings_class = functools.cache(options._settings_class)


def settings_loader(data: bytes) -> None:
    """The bytes of a TOML file."""
    descriptor, path = _settings_file()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
    try:
        with patch.object(options, "_settings_class", _settings_class):
            settings = options.load_settings(path)
    except Invalid:
        return
    assert isinstance(settings, JobSettings)


def kernel(data: bytes) -> None:
    """A history: see `tests.fuzz.histories`."""
    compare_history(data)


TARGETS: dict[str, Target] = {
    "record_decoder": record_decoder,
    "handle_parser": handle_parser,
    "value_codecs": value_codecs,
    "settings_loader": settings_loader,
    "kernel": kernel,
}
