"""Records that nobody should send: those that cannot be read, and operations that must be refused. Pure builders."""

from collections.abc import Iterator, Sequence

import msgspec

from popstream.wire.command import (
    Ack,
    AckEntry,
    ChangeEntry,
    ChangeInvisible,
    Command,
    HandleRef,
    Pop,
    Reject,
    RejectEntry,
    Tick,
    encode_command,
)
from popstream.wire.limits import INVISIBLE_TIME_MS_MAX
from popstream.wire.reason import Reason

__all__ = ["BadRecord", "forged", "out_of_range", "refused_counts", "rejected_records", "stale", "tampered"]

HUGE_BYTES = 8 * 1024 * 1024
HUGE_COUNT = 6
"""Each takes 8 MiB of disk and of the way through Spark: enough to be seen, not a thousand of them."""

REFUSED_KINDS = ("stale", "forged", "misrouted", "reused", "out_of_range")


class BadRecord(msgspec.Struct, frozen=True):
    """The value of a record and what must become of it."""

    kind: str
    value: bytes | None
    reason: str


def rejected_records(topic: str, queue_id: int, group: str, count: int) -> Iterator[BadRecord]:
    """`count` records that cannot be read, of every kind, in turn; a few of them are huge."""
    good = encode_command(Pop(v=1, topic=topic, queue_id=queue_id, group=group, max_messages=1, invisible_time_ms=1000))
    fields = msgspec.json.decode(good)

    def changed(**others: object) -> bytes:
        return msgspec.json.encode({**fields, **others})

    def without(*names: str) -> bytes:
        return msgspec.json.encode({name: value for name, value in fields.items() if name not in names})

    kinds = [
        BadRecord("broken JSON", good[:-1], "NOT_JSON"),
        BadRecord("broken JSON", b"\xff\xfe" + good, "NOT_JSON"),
        BadRecord("missing field", without("group"), "BAD_FIELD"),
        BadRecord("missing field", without("v"), "BAD_FIELD"),
        BadRecord("ill-typed field", changed(max_messages="many"), "BAD_FIELD"),
        BadRecord("ill-typed field", changed(queue_id=[queue_id]), "BAD_FIELD"),
        BadRecord("unknown field", changed(priority=9), "BAD_FIELD"),
        BadRecord("unknown type", changed(type="steal"), "UNKNOWN_TYPE"),
        BadRecord("unknown version", changed(v=2), "UNKNOWN_VERSION"),
        BadRecord("no object", b"[" + good + b"]", "NOT_AN_OBJECT"),
        BadRecord("empty", b"", "EMPTY"),
        BadRecord("empty", None, "EMPTY"),
    ]
    huge = BadRecord("8 MiB", b'{"v":1,"type":"pop","topic":"' + b"x" * HUGE_BYTES + b'"}', "TOO_LARGE")
    huge_count = min(HUGE_COUNT, count // 10)
    huge_at = {number * (count // huge_count) for number in range(huge_count)} if huge_count else set()
    for number in range(count):
        yield huge if number in huge_at else kinds[number % len(kinds)]


def refused_counts(count: int) -> dict[str, int]:
    """How many operations of each kind are refused; together `count`.

    >>> refused_counts(12)
    {'stale': 3, 'forged': 3, 'misrouted': 2, 'reused': 2, 'out_of_range': 2}
    """
    return {kind: len(range(number, count, len(REFUSED_KINDS))) for number, kind in enumerate(REFUSED_KINDS)}


def out_of_range(topic: str, queue_id: int, group: str, number: int) -> Command:
    """An operation that can be read and asks for what nobody can have."""

    def pop(
        max_messages: int = 1, invisible_time_ms: int = 1000, poll_time_ms: int = 0, op_id: str | None = None
    ) -> Pop:
        return Pop(
            v=1,
            topic=topic,
            queue_id=queue_id,
            op_id=op_id,
            group=group,
            max_messages=max_messages,
            invisible_time_ms=invisible_time_ms,
            poll_time_ms=poll_time_ms,
        )

    commands: Sequence[Command] = (
        pop(max_messages=0),
        pop(max_messages=10_001),
        pop(invisible_time_ms=0),
        pop(invisible_time_ms=INVISIBLE_TIME_MS_MAX + 1),
        pop(poll_time_ms=-1),
        pop(op_id="x" * 129),
        Ack(v=1, topic=topic, queue_id=queue_id, handles=[], entries=[]),
        Ack(v=1, topic=topic, queue_id=queue_id, handles=[], entries=[AckEntry(handle=7, offsets=[(0, 0)])]),
    )
    return commands[number % len(commands)]


def _with_handle(topic: str, queue_id: int, ref: HandleRef, offset: int, number: int) -> Command:
    """An ack, a change or a reject of one message, in turn."""
    span = [(offset, offset)]
    if number % 3 == 0:
        return Ack(v=1, topic=topic, queue_id=queue_id, handles=[ref], entries=[AckEntry(0, span)])
    if number % 3 == 1:
        return ChangeInvisible(
            v=1, topic=topic, queue_id=queue_id, handles=[ref], entries=[ChangeEntry(0, span, 60_000)]
        )
    return Reject(v=1, topic=topic, queue_id=queue_id, handles=[ref], entries=[RejectEntry(0, span)])


def stale(topic: str, queue_id: int, group: str, handle: str, offset: int, number: int) -> Command:
    """An operation with a handle whose message was handed out again since."""
    return _with_handle(topic, queue_id, HandleRef(group, handle), offset, number)


def forged(topic: str, queue_id: int, group: str, handle: str, offset: int, number: int) -> Command:
    """An operation with a handle that the job never gave out."""
    return _with_handle(topic, queue_id, HandleRef(group, tampered(handle, number)), offset, number)


def tampered(handle: str, number: int) -> str:
    """`handle` as a forger has it: with another epoch, another signature, another key, or none.

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


def reused(topic: str, queue_id: int, group: str, op_id: str, number: int) -> Command:
    """An operation under an op_id that stands for another one already."""
    return Pop(
        v=1, topic=topic, queue_id=queue_id, op_id=op_id, group=group, max_messages=1 + number, invisible_time_ms=1000
    )


def first_use(topic: str, queue_id: int, op_id: str) -> Command:
    """The operation that an op_id stands for; it does nothing."""
    return Tick(v=1, topic=topic, queue_id=queue_id, op_id=op_id)


REASON_OF_KIND = {
    "stale": Reason.STALE_HANDLE,
    "forged": Reason.NO_PERMISSION,
    "misrouted": Reason.MISROUTED,
    "reused": Reason.OP_ID_REUSED,
    "out_of_range": Reason.INVALID_PARAMETER,
}
"""What each kind of refused operation is answered."""
