"""Claim: where a job has admin keys, only a signed operation changes queues and groups, once; and a replay after a
rotation decides the same.

Method: decoder and kernel, in memory; a verification of a log that was decided with two keys.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from pipelines.decide_ops.decode import Decoder, KafkaRecord, Rejected
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.command import (
    Ack,
    AckEntry,
    AdminCommand,
    Cancel,
    Command,
    Declare,
    Dispatch,
    ForgetLane,
    HandleRef,
    Policy,
    Pop,
    Redrive,
    ResetOffset,
    ReturnClient,
    Tick,
    WrittenRange,
    encode_command,
)
from popstream.wire.handle import Handle, Signer, encode_handle, lane_check
from popstream.wire.signing import AdminKey, KeyRing, OperationVerifier, SigningKey, sign_operation
from tests.support.in_process.verify_scene import PARTITIONS, VerifyScene

QUEUE: dict[str, Any] = {"v": 1, "topic": "orders", "queue_id": 0}
OPS = "shop.ops"
OLD, NEW = AdminKey("old", "the former secret"), AdminKey("new", "the secret of now")
NOON_MS = 1_893_499_200_000
ADMINISTRATION: list[Command] = [
    Declare(**QUEUE, topic_id="t"),
    Policy(**QUEUE, group="g"),
    Dispatch(**QUEUE, ranges=[WrittenRange(0, 9)]),
    Dispatch(**QUEUE, skip=[(0, 0)]),
    ReturnClient(**QUEUE, group="g", client_id="c"),
    ResetOffset(**QUEUE, group="g", queue_offset=0),
    ForgetLane(**QUEUE, group="g"),
    Redrive(**QUEUE, group="g", offsets=[(0, 9)], to="group"),
]
CONSUMPTION: list[Command] = [
    Pop(**QUEUE, group="g", max_messages=1, invisible_time_ms=1),
    Ack(**QUEUE, handles=[], entries=[]),
    Cancel(**QUEUE, target_op_id="x"),
    Tick(**QUEUE),
]


def ring(**keys: AdminKey) -> KeyRing:
    return KeyRing.of({key.key_id: key.secret.encode() for key in (keys or {"": OLD, " ": NEW}).values()}, "new")


def decoder(keys: KeyRing | None = None) -> Decoder:
    return Decoder(4, verifier=OperationVerifier(keys or ring(), OPS))


def record(
    command: Command, key: AdminKey | None = None, *, kafka_offset: int = 0, at_ms: int = NOON_MS
) -> KafkaRecord:
    value = encode_command(command)
    if key is not None:
        value = sign_operation(value, key, ops_topic=OPS, at_ms=NOON_MS)
    place = ops_key("orders", 0)
    return KafkaRecord(partition_of(place, 4), kafka_offset, at_ms, place, value, len(value))


def with_op_id(command: Command, op_id: str = "op") -> Command:
    fields = {**json.loads(encode_command(command)), "op_id": op_id, "reply_to": 2}
    return decode_command(json.dumps(fields).encode())


def decode_command(value: bytes) -> Command:
    found = Decoder(4).decode(KafkaRecord(0, 0, 0, b"", value, len(value)))
    assert isinstance(found, OpRecord)
    return found.command


def test_every_kind_is_here() -> None:
    assert {type(command) for command in ADMINISTRATION} == set(get_args(AdminCommand))


REJECTED = [command for command in ADMINISTRATION if not isinstance(command, ReturnClient)]


@pytest.mark.parametrize("command", REJECTED, ids=lambda command: type(command).__name__)
def test_without_a_signature_it_is_rejected_and_its_sender_told(command: Command) -> None:
    found = decoder().decode(record(with_op_id(command)))
    assert isinstance(found, Rejected)
    assert (found.row.reason, found.row.op_id, found.reply_to) == ("NOT_SIGNED", "op", 2)
    answer = json.loads(found.answer or b"")
    assert (answer["code"], answer["reason"], answer["applied"]) == (16, "NO_PERMISSION", False)
    assert answer["detail"] == f"NOT_SIGNED: {answer['type']} needs the signature of an admin key"


def test_a_release_without_a_signature_is_refused_and_no_alarm() -> None:
    """Each consumer with a client id of its own asks for one when it starts."""
    found = decoder().decode(record(with_op_id(ReturnClient(**QUEUE, group="g", client_id="c"))))
    assert isinstance(found, OpRecord)
    decision, kv = Decision(), MemoryKv()
    overlay = Overlay(kv)
    before: list[Command] = [Declare(**QUEUE, topic_id="t"), Dispatch(**QUEUE, ranges=[WrittenRange(0, 9)])]
    pop = Pop(**QUEUE, group="g", max_messages=1, invisible_time_ms=60_000, client_id="c")
    fold(overlay, [OpRecord(0, n, NOON_MS, each, bytes(8)) for n, each in enumerate((*before, pop))], decision)
    assert fold(overlay, [found], decision) == set()
    row = decision.operations[-1]
    assert (row.kind, row.reason, row.code, row.applied) == ("return_client", "NO_PERMISSION", 16, False)
    assert (row.group, row.client_id) == ("g", "c")
    assert "needs the signature of an admin key" in str(row.detail)
    assert [(row.step, row.cause) for row in decision.deliveries] == [("leased", "pop")]
    assert json.loads(decision.answers[-1][1])["reason"] == "NO_PERMISSION"


@pytest.mark.parametrize("command", ADMINISTRATION, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize("key", [OLD, NEW], ids=lambda key: key.key_id)
def test_with_one_of_two_keys_it_is_decided(command: Command, key: AdminKey) -> None:
    found = decoder().decode(record(with_op_id(command), key))
    assert isinstance(found, OpRecord)
    assert found.admin_key == key.key_id


@pytest.mark.parametrize("command", CONSUMPTION, ids=lambda command: type(command).__name__)
def test_consumers_need_no_key(command: Command) -> None:
    assert isinstance(decoder().decode(record(with_op_id(command))), OpRecord)


@pytest.mark.parametrize(
    ("key", "at_ms", "said"),
    [
        (AdminKey("new", OLD.secret), NOON_MS, "is not what was signed with the admin key new"),
        (AdminKey("other", NEW.secret), NOON_MS, "there is no admin key other"),
        (NEW, NOON_MS + 481_000, "signed 481 s before Kafka got it"),
    ],
)
def test_a_bad_signature_is_rejected(key: AdminKey, at_ms: int, said: str) -> None:
    found = decoder().decode(record(with_op_id(Policy(**QUEUE)), key, at_ms=at_ms))
    assert isinstance(found, Rejected)
    assert (found.row.reason, said in found.row.detail) == ("BAD_SIGNATURE", True)
    assert json.loads(found.answer or b"")["code"] == 16


def test_a_signed_operation_needs_an_op_id() -> None:
    found = decoder().decode(record(Policy(**QUEUE), NEW))
    assert isinstance(found, Rejected)
    assert found.row.detail == "a signed policy needs an op_id"


def test_a_job_without_keys_takes_both() -> None:
    for key in (None, NEW):
        found = Decoder(4).decode(record(with_op_id(Policy(**QUEUE)), key))
        assert isinstance(found, OpRecord)
        assert found.admin_key is None


def test_a_copy_changes_nothing_and_the_audit_names_the_key() -> None:
    """From the first moment that it may be written to the last one that a copy is taken: 9 minutes."""
    decision, overlay = Decision(), Overlay(MemoryKv())
    reset = with_op_id(ResetOffset(**QUEUE, group="g", queue_offset=0), "reset")
    log = [
        record(with_op_id(Declare(**QUEUE, topic_id="t"), "1"), OLD, kafka_offset=0, at_ms=NOON_MS - 60_000),
        record(reset, NEW, kafka_offset=1, at_ms=NOON_MS - 60_000),
        record(reset, NEW, kafka_offset=2, at_ms=NOON_MS + 480_000),
    ]
    found = [decoder().decode(each) for each in log]
    fold(overlay, [each for each in found if isinstance(each, OpRecord)], decision)
    assert [(row.kind, row.admin_key, row.applied, row.repeated) for row in decision.operations] == [
        ("declare", "old", True, False),
        ("reset_offset", "new", True, False),
        ("reset_offset", "new", False, True),
    ]


def test_a_handle_is_judged_by_the_keys_of_its_time() -> None:
    handle = encode_handle(Handle(0, 0, 500, 0, 0, 1, 0, lane_check("orders", 0, "g")))
    keys = KeyRing({"a": SigningKey(b"first", NOON_MS + 5), "b": SigningKey(b"second")}, "b", since_ms=NOON_MS)
    former = Signer(KeyRing.of({"a": b"first"}, "a")).sign(handle)

    def forged(text: str, at_ms: int) -> bool:
        ack = Ack(**QUEUE, handles=[HandleRef("g", text)], entries=[AckEntry(0, [(0, 0)])])
        found = Decoder(4, Signer(keys)).decode(record(ack, at_ms=at_ms))
        assert isinstance(found, OpRecord)
        return bool(found.forged)

    assert (forged(handle, NOON_MS - 1), forged(handle, NOON_MS)) == (False, True)
    assert (forged(former, NOON_MS + 4), forged(former, NOON_MS + 5)) == (False, True)
    assert not forged(Signer(keys).sign(handle), NOON_MS + 5)


def test_a_replay_after_a_rotation_decides_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log from a time without keys, with one key, and with another one."""
    scene = VerifyScene(tmp_path, monkeypatch, messages=20)
    place = ops_key("orders", 0)
    partition = partition_of(place, PARTITIONS)

    def send(key: AdminKey | None) -> int:
        at_ms = 1_000 + len(scene.records[partition])
        value = encode_command(with_op_id(Policy(**QUEUE, group="billing"), f"policy-{at_ms}"))
        if key is not None:
            value = sign_operation(value, key, ops_topic="ops", at_ms=at_ms)
        scene.send_raw(partition, value, place)
        return at_ms

    send(None)
    since_ms = send(OLD)
    send(None)
    until_ms = send(NEW)
    send(OLD)

    def keys(**changed: SigningKey) -> KeyRing:
        known = {"old": SigningKey(OLD.secret.encode(), until_ms), "new": SigningKey(NEW.secret.encode())}
        return KeyRing({**known, **changed}, "new", since_ms)

    scene.decoder = Decoder(PARTITIONS, verifier=OperationVerifier(keys(), "ops"))
    scene.decide()
    assert scene.verify().differences == []
    gone = KeyRing({"new": keys().keys["new"]}, "new", since_ms)
    for wrong in (gone, keys(old=SigningKey(OLD.secret.encode()))):
        scene.decoder = Decoder(PARTITIONS, verifier=OperationVerifier(wrong, "ops"))
        assert scene.verify().differences
    scene.decoder = Decoder(PARTITIONS)
    assert scene.verify().differences
