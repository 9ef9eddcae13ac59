"""What a fuzzer starts from: what killed decoders elsewhere, and what the product itself writes."""

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np

from broker_state.consume_queue import Scan, Unit, Units
from broker_state.consume_queue.block import encode_block
from broker_state.consume_queue.columns import unseal
from broker_state.consume_queue.key_filter import encode_key_filter
from broker_state.consume_queue.queue_record import ConsumeQueue
from broker_state.consume_queue.summary import encode_page, summary_of
from broker_state.store.segment import FULL, encode_segment
from broker_state.store.state_records import ParkedPop
from checkpoints.applied import Applied
from checkpoints.replay import Replay
from connectors.delta.rows import encode_rows
from pipelines.decide_ops.decode import Decoder, KafkaRecord, Rejected
from pipelines.decide_ops.entries import TABLE_NUMBERS
from popstream.payload.inner_batch import InnerMessage, encode_inner_batch
from popstream.wire.command import Policy, encode_command
from popstream.wire.handle import Handle, encode_handle, lane_check
from popstream.wire.signing import AdminKey, sign_operation
from tests.fuzz.targets import CODECS, OPS_TOPIC, SIGNERS
from tests.model.generator import PARTITIONS, World, iterate
from tests.model.kernel_subject import KernelSubject

__all__ = ["SEEDS", "seeds_of"]

_SEED = 7

# What a lenient reader takes for something else, and what kills a batch.
_RECORDS: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"7",
    b'"text"',
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'{"v":1,"type":"tick","topic":"t","queue_id":99999999999}',
    b'{"v":1,"type":"tick","topic":"t","queue_id":-1}',
    b'{"v":1,"type":"tick","topic":"t","queue_id":5.7}',
    b'{"v":1,"type":"tick","topic":"t","queue_id":"5"}',
    b'{"v":1,"type":"tick","topic":"t","queue_id":true}',
    b'{"v":1,"type":"tick","topic":"t","queue_id":NaN}',
    b'{"v":1,"type":"tick","topic":"t","queue_id":1e400}',
    b'{"v":1,"type":"tick","topic":"t","queue_id":' + b"9" * 400 + b"}",
    b'{"v":1,"type":"tick","topic":"t","queue_id":0}{"v":1,"type":"tick","topic":"t","queue_id":0}',
    b'{"v":1,"type":"tick","topic":"t","queue_id":0,"queue_id":1}',
    b'{"V":1,"Type":"tick","topic":"t","queue_id":0}',
    b'{"v":2,"type":"tick","topic":"t","queue_id":0,"op_id":"a","reply_to":1}',
    b'{"v":1,"type":"pup","topic":"t","queue_id":0,"op_id":"a","reply_to":1}',
    b'{"v":2,"type":7,"topic":[],"queue_id":' + b"9" * 40 + b',"op_id":"a","reply_to":' + b"9" * 40 + b"}",
    b'{"v":1,"type":"tick","topic":"t","queue_id":0,"more":1,"op_id":"a","reply_to":1}',
    b'{"v":1,"type":"tick","topic":"\\ud800","queue_id":0,"op_id":"a","reply_to":1}',
    b'{"v":1,"type":"tick","topic":"\xed\xa0\x80","queue_id":0}',
    b'{"v":1,"type":"ack","topic":"t","queue_id":0,"handles":[],"entries":[7,{"handle":0,"offsets":[[0,1]]},null]}',
    b'{"v":1,"type":"reject","topic":"t","queue_id":0,"handles":[],"entries":[{"handle":0,"offsets":[[0]]}]}',
    b'{"v":1,"type":"change_invisible","topic":"t","queue_id":0,"handles":[],"entries":[[]]}',
    b'{"v":1,"type":"ack","topic":"t","queue_id":0,"handles":[{"group":"g","handle":"1.AAAA.a.\xc3\xa9"}],"entries":[]}',
    b'{"v":1,"type":"dispatch","topic":"t","queue_id":0,"ranges":[{"first":0,"last":9223372036854775808}]}',
    b"[" * 2_000,
    b'{"a":' * 1_500,
    b'{"v":1,"type":"ack","topic":"t","queue_id":0,"handles":[],"entries":' + b"[" * 1_500 + b"}",
)

_SETTINGS: tuple[bytes, ...] = (
    b"",
    b"folder = 'var/job'\nops_partitions = 8\nflush_interval_s = 2.5\nticks = false\n",
    b"message_topics = 'orders*, parcels'\n[queue_types]\norders = 'batch'\nparcels = 'simple'\n",
    b'handle_key_active = \'a\'\n[handle_keys]\na = \'secret\'\nb = """more"""\n',
    b"ops_partitions = 0",
    b"ops_partitions = '8'",
    b"ops_partitions = 1_024",
    b"metrics_port = 0x10000\nlog_level = 7",
    b"flush_interval_s = nan",
    b"flush_interval_s = inf",
    b"stall_s_max = -1e400",
    b"outbox_bytes_max = 99999999999999999999999999",
    b"unknown = 1",
    b"a.b.c = {d = [1, {e = 2}]}",
    b"folder = ''",
    b'folder = "\\u0000"',
    b"folder = 1979-05-27T07:32:00Z",
    b"[[queue_types]]\n",
    b"queue_types = {orders = 'other', 7 = 'simple'}",
    b"handle_keys = ['secret']",
    b"a = 1\na = 2",
    b"a = '",
    b"folder = '\xff'",
    b"\xef\xbb\xbffolder = 'a'",
    b"folder = 'a'\r\n# \x7f\x00",
    b"a = " + b"[" * 300,
    b"a = " + b"9" * 5_000,
)


def _records() -> Iterator[bytes]:
    plain = bytes(9) + b"\0"
    for flags in (b"\0", b"\x08"):
        yield from (flags + plain[1:] + value for value in _RECORDS)
    yield from (b"\x01" + plain[1:], b"\x02" + plain[1:] + b"{}", b"\x04" + plain[1:] + b"{}")
    policy = encode_command(Policy(v=1, topic="orders", queue_id=0, op_id="x", reply_to=0))
    signed = sign_operation(policy, AdminKey("a", "first secret of fuzz"), ops_topic=OPS_TOPIC, at_ms=0)
    yield from (b"\x40" + plain[1:] + value for value in (policy, signed, signed[:-2] + b'A"}', signed[:-1] + b" }"))
    for record in iterate(_SEED, 120):
        if len(record.value) < 2_000:
            head = bytes((record.partition << 4,)) + record.timestamp_ms.to_bytes(8, "big")
            yield head + bytes((len(record.key),)) + record.key + record.value


def _handles() -> Iterator[bytes]:
    handle = Handle(7, 1_000, 500, 0, 3, 9, 1, lane_check("orders", 3, "billing"))
    texts = [
        encode_handle(handle),
        encode_handle(Handle(0, 0, 0, 0, 0, 0, 0, 0, "")),
        "",
        "1",
        "1.",
        "1.AAAA",
        "2.AAAA",
        "1.!",
        ".....",
    ]
    texts += [signer.sign(texts[0]) for signer in SIGNERS.values()]
    texts += [f"{texts[0]}.c.AAAA", f"{texts[0]}.a.AAAA", f"{texts[0]}.a.\u00e9", f"1.\u00fc.a.{texts[0][-22:]}"]
    yield from (b"\0" + text.encode() for text in texts)
    payload = bytes(range(42)) + b"popstream"
    yield from (bytes((how,)) + part for how in (1, 2, 3) for part in (payload, payload[:41], payload + b"\xff", b""))


_KIND_OF = {b"Q": "queue", b"d": "delivery page", b"T": "unit facts page", b"m": "member page", b"o": "order info"}
_KIND_OF |= {b"w": "parked pop", b"K": "late skip", b"L": "text", b"F": "op log", b"N": "lane"}
_KIND_OF |= {b"R": "queue usage", b"q": "lane usage"}


def _stored_values() -> Iterator[tuple[str, bytes]]:
    """What short histories leave in the store, by the letter of its key."""
    for seed in range(_SEED, _SEED + 8):
        subject = KernelSubject(None)
        for record, _ in World(seed).play(400):
            subject(record)
        for family, values in subject._kv.families.items():
            for key, value in values.items():
                # <queue> is a length, a name and four bytes; <lane> adds a letter and four.
                letter = key[key[0] + 5 :]
                letter = letter[5:6] if letter[:1] == b"P" else letter[:1]
                if family == "ops":
                    yield "op memory", value
                elif family == "state" and letter in _KIND_OF:
                    yield _KIND_OF[letter], value
                elif family == "state" and letter in b"WHav":
                    yield "segment", value


def _units() -> Units:
    return Units.of(
        [
            Unit(
                queue_offset=3 * 1024 + at,
                size_bytes=100 + at,
                store_time_ms=5_000 + at,
                message_base=10 * at,
                inner_count=10,
                tag_hash=at % 3,
                key_hash=at * 77,
                more_key_hashes=tuple(range(at % 4)),
                is_readable=at % 5 > 0,
            )
            for at in (0, 1, 2, 7, 9, 64)
        ]
    )


def _codec_values() -> Iterator[tuple[str, bytes]]:
    yield from _stored_values()
    yield "parked pop", ParkedPop(3, 2, 0, "op-1", 1, 10, 30_000, 1_700_000_000_000, "c", "a", (7, 9)).encode()
    for bits in (0b1110, FULL, FULL ^ (1 << 9), FULL // 3, FULL // 0xFFFFFFFF * 0xFFFF, 1 << 4095):
        yield "segment", encode_segment(bits)
    yield "consume queue", ConsumeQueue("id", "batch", 1_000, 70_000, 5, 900, 400, 895).encode()
    units = _units()
    simple = Units.simple(np.array([3072, 3073]), np.array([90, 91]), np.array([5, 5]))
    delayed = replace(simple, deliver_at_ms=np.array([0, 9]))
    named = replace(delayed, dedup_low=np.array([7, 7], np.uint64), duplicate_of=np.array([-1, 3072]))
    scans = (Scan(3072, 3500, units), *(Scan(3072, 3074, each) for each in (simple, delayed, named)))
    for block in map(encode_block, scans):
        yield "block", block
        yield "block, sealed", unseal("seed", block)
    page = encode_page({192: summary_of(units), 255: summary_of(simple)})
    yield "page of blocks", page
    yield "page of blocks, sealed", unseal("seed", page)
    key_filter = encode_key_filter(np.array([77, 99], np.uint64))
    yield "key filter", key_filter
    yield "key filter, sealed", unseal("seed", key_filter)
    yield "applied", Applied(state_epoch="e", ops_topic="ops", ops_topic_id="id", next_offset={0: 7, 3: 9}).encode()
    messages = [InnerMessage(b"one", 0, b"key", [("name", b"value"), ("none", None)]), InnerMessage(None, 5)]
    value, headers = encode_inner_batch(messages, created_ms=1_700_000_000_000, ids=["a1b2-a", "a1b2-b"])
    yield "inner batch", bytes((len(messages),)) + value
    parts = (dict(headers)[f"popstream-batch-{name}"] for name in ("count", "bytes", "keys", "base"))
    yield "inner batch", b"\xff" + b"".join(bytes((len(part),)) + part for part in parts) + value
    yield "frame", (3).to_bytes(4, "big") + b'{"v":1,"answers":[]}'
    yield "notifications", msgspec.msgpack.encode([(b"orders\x000\0billing", b"{}")])
    rejected = Decoder(PARTITIONS).decode(KafkaRecord(0, 0, 5, b"k", b"{}", 2))
    assert isinstance(rejected, Rejected)
    yield "audit slice", bytes((TABLE_NUMBERS["rejected"],)) + encode_rows("rejected", [rejected.row])[0]
    answer = b'{"op_id":"a","type":"pop","code":0,"reason":"OK","applied":true,"topic":"t","queue_id":0,"now_ms":1}'
    yield "answers", b'{"v":1,"answers":[' + answer + b"]}"
    yield "answers", b'{"v":1,"answers":[' + answer.replace(b"OK", b"NEW") + b"," + answer + b"]}"
    covered = {"operations": {0: 7, 1: 9}}
    whole = {"operations": {"e": 12}}
    yield (
        "replay",
        Replay(restored_from="snapshot", covered=covered, lost=["it"], since_loss=["e"], whole=whole).encode(),
    )


def _values() -> Iterator[bytes]:
    places = {kind: bytes((place,)) for place, kind in enumerate(CODECS)}
    shortest: dict[tuple[str, int], bytes] = {}
    for kind, value in _codec_values():
        size = len(value).bit_length()
        shortest.setdefault((kind, size), value)
    assert {kind for kind, _ in shortest} == set(CODECS), "a seed of every codec"
    for (kind, _), value in shortest.items():
        yield places[kind] + value
    yield from (
        place + broken for place in places.values() for broken in (b"", b"\x01", b"\x01\xc1", b"\x01\x90", b"\x02")
    )


def _histories() -> Iterator[bytes]:
    """Any bytes are a history; small ones take what is common."""
    chance = random.Random(_SEED)
    for size in (40, 120, 250, 400):
        yield bytes(size)
        for most in (0x10, 0x40, 0x80, 0x100):
            yield from (bytes(chance.randrange(most) for _ in range(size)) for _ in range(6))


SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "record_decoder": _records,
    "handle_parser": _handles,
    "value_codecs": _values,
    "settings_loader": lambda: iter(_SETTINGS),
    "kernel": _histories,
}


@functools.cache
def seeds_of(target: str) -> list[bytes]:
    """The inputs from which the fuzzing of a target starts, each once, in the same order every time."""
    return list(dict.fromkeys(SEEDS[target]()))
