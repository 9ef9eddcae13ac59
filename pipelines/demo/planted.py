"""Records that nobody should send: malformed ones, and operations that the job must refuse."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from popstream.wire.command import Ack, AckEntry, Command, HandleRef, Policy, Pop, Tick, encode_command
from popstream.wire.limits import INVISIBLE_TIME_MS_MAX, OP_ID_BYTES_MAX, POP_MESSAGES_MAX
from popstream.wire.reason import Reason, code_of

__all__ = ["Planted", "PlantedRecord", "malformed", "operation", "read_planted", "refused", "tampered", "with_handle"]

HUGE_BYTES = 8 * 1024 * 1024
HUGE_COUNT_MAX = 6


class PlantedRecord(msgspec.Struct, frozen=True):
    """A record to write: it must be rejected (`code` 0), or refused with `code`.

    Without a reason nothing is expected of it; it prepares another one.
    """

    queue_id: int
    value: bytes | None
    reason: str = ""
    code: int = 0


class Planted(msgspec.Struct, frozen=True):
    """Where a record was written, and what must become of it."""

    partition: int
    kafka_offset: int
    reason: str
    code: int


def read_planted(path: Path) -> list[Planted]:
    """Read the records that an intruder has written."""
    return [msgspec.json.decode(line, type=Planted) for line in path.read_bytes().splitlines()]


def operation(queue_id: int, command: Command, reason: Reason) -> PlantedRecord:
    """Return the record of an operation that must be refused."""
    return PlantedRecord(queue_id, encode_command(command), reason, code_of(reason))


def malformed(topic: str, group: str, queues: int, count: int) -> Iterator[PlantedRecord]:
    """Yield `count` records to reject, every kind in turn: malformed ones, and unsigned policies; a few are huge."""
    good = encode_command(_pop(topic, 0, group))
    fields = msgspec.json.decode(good)

    def changed(**others: object) -> bytes:
        return msgspec.json.encode({**fields, **others})

    kinds = [
        (good[:-1], "NOT_JSON"),
        (b"\xff\xfe" + good, "NOT_JSON"),
        (msgspec.json.encode({name: value for name, value in fields.items() if name != "group"}), "BAD_FIELD"),
        (changed(max_messages="many"), "BAD_FIELD"),
        (changed(priority=9), "BAD_FIELD"),
        (changed(type="steal"), "UNKNOWN_TYPE"),
        (changed(v=2), "UNKNOWN_VERSION"),
        (b"[" + good + b"]", "NOT_AN_OBJECT"),
        (b"", "EMPTY"),
        (None, "EMPTY"),
        (encode_command(Policy(v=1, topic=topic, queue_id=0, group=group, max_attempts=1)), "NOT_SIGNED"),
    ]
    huge = b'{"v":1,"type":"pop","topic":"' + b"x" * HUGE_BYTES + b'"}', "TOO_LARGE"
    huge_every = max(10, -(-count // HUGE_COUNT_MAX))
    for number in range(count):
        value, reason = huge if number % huge_every == huge_every - 1 else kinds[number % len(kinds)]
        yield PlantedRecord(number % queues, value, reason)


def refused(topic: str, group: str, queues: int, count: int) -> Iterator[PlantedRecord]:
    """Yield `count` operations that must be refused, and before some of them one that uses their op_id."""
    for number in range(count):
        queue_id, kind, op_id = number % queues, number % 3, f"used-{number}"
        commands = (
            _pop(topic, queue_id, group, max_messages=0),
            _pop(topic, queue_id, group, max_messages=POP_MESSAGES_MAX + 1),
            _pop(topic, queue_id, group, invisible_time_ms=INVISIBLE_TIME_MS_MAX + 1),
            _pop(topic, queue_id, group, poll_time_ms=-1),
            _pop(topic, queue_id, group, op_id="x" * (OP_ID_BYTES_MAX + 1)),
            Ack(v=1, topic=topic, queue_id=queue_id, handles=[], entries=[AckEntry(handle=7, offsets=[(0, 0)])]),
        )
        if kind == 0:
            yield operation(queue_id, commands[number // 3 % len(commands)], Reason.INVALID_PARAMETER)
        elif kind == 1:
            yield operation(queue_id, _pop(topic, queue_id, group), Reason.MISROUTED)
        else:
            yield PlantedRecord(queue_id, encode_command(Tick(v=1, topic=topic, queue_id=queue_id, op_id=op_id)))
            yield operation(queue_id, _pop(topic, queue_id, group, op_id=op_id), Reason.OP_ID_REUSED)


def with_handle(topic: str, queue_id: int, ref: HandleRef, queue_offset: int) -> Command:
    """Return an ack of one message."""
    entries = [AckEntry(0, [(queue_offset, queue_offset)])]
    return Ack(v=1, topic=topic, queue_id=queue_id, handles=[ref], entries=entries)


def tampered(handle: str, number: int) -> str:
    """Return `handle` with another epoch, another signature, another key, or no signature.

    >>> tampered("1.QUJD.demo.c2ln", 2)
    '1.QUJD.other.c2ln'
    """
    version, payload, key, signature = handle.split(".")
    other = {"A": "B"}
    variants = (
        f"{version}.{payload[:-1]}{other.get(payload[-1], 'A')}.{key}.{signature}",
        f"{version}.{payload}.{key}.{other.get(signature[0], 'A')}{signature[1:]}",
        f"{version}.{payload}.other.{signature}",
        f"{version}.{payload}",
    )
    return variants[number % len(variants)]


def _pop(topic: str, queue_id: int, group: str, **fields: Any) -> Pop:  # noqa: ANN401 - fields of Pop
    defaults = {"max_messages": 1, "invisible_time_ms": 1000}
    return Pop(v=1, topic=topic, queue_id=queue_id, group=group, **{**defaults, **fields})
