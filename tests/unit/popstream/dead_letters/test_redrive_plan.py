"""Claim: a redriven message is the message, for whom it is meant, and nothing of its past decides about it.

Method: letters made by `copy_of`, as the job makes them, and plans of their redrives.
"""

from __future__ import annotations

import msgspec
import pytest

from popstream.dead_letters.letter import Letter
from popstream.dead_letters.redrive_plan import plan_redrive
from popstream.payload.inner_batch import InnerMessage, encode_inner_batch
from popstream.payload.payloads import Payload
from popstream.payload.redelivery import Redelivery
from popstream.payload.redriven import Redriven
from popstream.wire.base_errors import Invalid
from popstream.wire.command import QueueType
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import COPY_BYTES_MAX, copy_of

GIVEN_UP = DeadLetter("orders", 2, "baristas", 10, 10, "attempt_limit", 16, 3, 7_000, 8_000, 1, 99, "handler: KeyError")


def letter_of(message: Payload | None, given_up: DeadLetter = GIVEN_UP) -> Letter:
    copied = copy_of(given_up, 10, message)
    return Letter.of(1, 5, Payload(copied.key, copied.value, [*copied.headers], 9_000))


def message(*headers: tuple[str, bytes | None], value: bytes | None = b"mocha") -> Payload:
    return Payload(b"table-3", value, list(headers), 1_000)


def plan(
    letter: Letter, to: str = "group", queue_type: QueueType | None = "simple", queues: int = 3
) -> list[tuple[bytes | None, bytes | None, dict[str, bytes]]]:
    assert to in ("group", "topic")
    records = plan_redrive(letter, "group" if to == "group" else "topic", lambda _: queue_type, range(queues))
    return [(record.key, record.value, dict(record.headers)) for record in records]


def test_a_letter_says_what_the_job_has_written() -> None:
    letter = letter_of(message(("trace", b"1")))
    assert (letter.place, letter.topic, letter.queue_id, letter.queue_offset) == ("1/5", "orders", 2, 10)
    assert (letter.group, letter.reason, letter.cause, letter.attempts) == (
        "baristas",
        "attempt_limit",
        "handler: KeyError",
        16,
    )
    assert (letter.given_up_ms, letter.headers, letter.cannot_redrive, letter.redrives) == (
        8_000,
        [("trace", b"1")],
        "",
        0,
    )
    assert letter.history is not None
    assert (letter.history.ops_partition, letter.history.ops_kafka_offset, letter.history.epoch) == (1, 99, 3)


def test_a_letter_is_as_large_as_the_record_that_it_holds() -> None:
    record = message(("größe", b"1"), ("trace", None))
    assert letter_of(record).size_bytes == record.size_bytes == len("table-3mocha1trace") + len("größe".encode())


def test_a_second_copy_of_a_letter_has_its_id_and_another_letter_has_not() -> None:
    copied = copy_of(GIVEN_UP, 10, message())
    again = Letter.of(0, 77, Payload(copied.key, copied.value, [*copied.headers], 9_999))
    assert again.letter_id == letter_of(message()).letter_id
    later = msgspec.structs.replace(GIVEN_UP, kafka_offset=100)
    assert letter_of(message(), later).letter_id != again.letter_id


def test_for_the_group_alone_its_attempts_begin_again() -> None:
    before = Redelivery("baristas", 4, 99, reject="no milk").header()
    letter = letter_of(message(("trace", b"1"), ("popstream-tag", b"hot"), before))
    ((key, value, headers),) = plan(letter)
    assert (key, value) == (b"table-3", b"mocha")
    assert Redelivery.parse([*headers.items()]) == Redelivery("baristas", 0, 0, None)
    assert headers.keys() == {"trace", "popstream-tag", "popstream-resent", "popstream-redriven"}


def test_for_the_topic_it_is_for_every_group() -> None:
    letter = letter_of(message(Redelivery("baristas", 4).header()))
    ((_, _, headers),) = plan(letter, "topic")
    assert Redelivery.parse([*headers.items()]) is None


@pytest.mark.parametrize("to", ["group", "topic"])
def test_the_job_must_not_take_it_for_a_duplicate_of_itself(to: str) -> None:
    ((_, _, headers),) = plan(letter_of(message(("popstream-dedup-id", b"order-17"))), to)
    assert "popstream-dedup-id" not in headers


def test_redrives_of_a_message_are_counted() -> None:
    first = letter_of(message())
    ((_, value, headers),) = plan(first)
    second = letter_of(
        Payload(b"table-3", value, [*headers.items()], 1_000), msgspec.structs.replace(GIVEN_UP, first=11)
    )
    ((_, _, again),) = plan(second)
    assert (first.redrives, second.redrives) == (0, 1)
    assert msgspec.json.decode(again["popstream-redriven"]) == {"letter": second.letter_id, "count": 2}
    assert Redriven.count_of([*again.items()]) == 2


def unit() -> Payload:
    inner = [InnerMessage(b"one", 0, b"k", [("trace", None)]), InnerMessage(None, 5)]
    value, headers = encode_inner_batch(inner, created_ms=500, ids=["a1b2-a", "a1b2-b"], tag="hot", deliver_at_ms=700)
    return Payload(None, value, [*headers], 1_000)


def test_a_unit_for_a_group_becomes_its_messages() -> None:
    """A client looks for `popstream-resent` in records of their own only."""
    (first_key, first_value, first), (key, value, second) = plan(letter_of(unit()), queue_type="batch")
    assert (first_key, first_value, first["trace"]) == (b"k", b"one", b"")
    assert (key, value) == (None, b"")
    assert (first["popstream-message-id"], second["popstream-message-id"]) == (b"a1b2-a", b"a1b2-b")
    for headers in (first, second):
        assert "popstream-batch-count" not in headers
        assert (headers["popstream-tag"], headers["popstream-deliver-at"]) == (b"hot", b"700")
        assert Redelivery.parse([*headers.items()]) == Redelivery("baristas")


def test_a_unit_for_the_topic_stays_a_unit() -> None:
    letter = letter_of(unit())
    ((key, value, headers),) = plan(letter, "topic", queue_type="batch")
    assert (key, value) == (None, letter.value)
    assert headers.keys() - {"popstream-redriven"} == {name for name, _ in unit().headers}


def test_on_a_simple_topic_a_record_is_one_message_whatever_its_headers() -> None:
    assert len(plan(letter_of(unit()))) == 1


def test_what_cannot_be_redriven_says_why() -> None:
    broken = Payload(None, b"not MessagePack", [*unit().headers], 1_000)
    for letter, why in (
        (letter_of(None), "the message had left the log"),
        (letter_of(message(value=b"x" * COPY_BYTES_MAX)), "it is still at its coordinates"),
        (letter_of(broken), "its message cannot be read"),
        (Letter.of(1, 5, Payload(None, b"v", [("trace", b"1")], 9_000)), "not those of a dead letter"),
        (Letter.of(1, 5, Payload(None, b"v", [("popstream.queue_id", None)], 9_000)), "not those of a dead letter"),
    ):
        with pytest.raises(Invalid, match=why):
            plan(letter, queue_type="batch")
    with pytest.raises(Invalid, match="orders/2 does not exist any more"):
        plan(letter_of(message()), queues=2)


PRETENDED = [("popstream.gone", b"?"), ("popstream.too_large", b"?"), ("popstream.cause", b"handler: ?")]


def test_a_sender_cannot_write_what_only_the_job_says() -> None:
    rejected = msgspec.structs.replace(GIVEN_UP, reason="rejected", cause=None)
    copied = copy_of(rejected, 10, message(*PRETENDED, ("trace", b"1")))
    assert not {name for name, _ in PRETENDED} & {name for name, _ in copied.headers}
    of_older_version = Payload(copied.key, copied.value, [*PRETENDED, *copied.headers], 9_000)
    for letter in (letter_of(message(*PRETENDED, ("trace", b"1")), rejected), Letter.of(1, 5, of_older_version)):
        assert (letter.cannot_redrive, letter.cause, letter.headers) == ("", None, [("trace", b"1")])


def test_records_that_are_no_letters_are_told_apart() -> None:
    """They have no headers to be known by; what is recorded about one must not hide the others."""
    ids = {Letter.of(1, offset, Payload(None, b"v", [], 9_000)).letter_id for offset in range(3)}
    assert len(ids) == 3


@pytest.mark.parametrize("history", [b"", b"?", b"{}", b"[1]", b'{"epoch":"x"}'])
def test_a_malformed_history_keeps_no_letter_from_being_read(history: bytes) -> None:
    copied = copy_of(GIVEN_UP, 10, message())
    headers: list[tuple[str, bytes | None]] = [*copied.headers, ("popstream.history", history)]
    letter = Letter.of(1, 5, Payload(copied.key, copied.value, headers, 9_000))
    assert (letter.history, letter.given_up_ms, letter.cannot_redrive) == (None, 9_000, "")
