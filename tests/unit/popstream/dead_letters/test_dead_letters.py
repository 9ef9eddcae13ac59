"""Claim: each selected letter is handled once, those that cannot be are left and named, and the record says who did it.

Method: a job in memory whose handlers reject; a writer that refuses, or is killed, in place of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pytest

from popstream import DeadLetters, Invalid, LetterSelection, NotDeclared, Reject
from popstream.dead_letters import handling_run, letter_reader
from popstream.dead_letters.letter import Letter, parse_place
from popstream.dead_letters.letter_topics import HandledLetter, LetterRefusedError, LogBounds
from popstream.payload.payloads import Payload
from popstream.testing import MemoryJob, run_handler
from popstream.testing._memory_letters import MemoryLetterTopics, MemoryLetterWriter
from popstream.wire.answer import Answer
from popstream.wire.command import Redrive
from popstream.wire.letter_handling import LetterHandling
from popstream.wire.queue_name import QueueName

HANDLED = "popstream.dead_letters_handled"


@pytest.fixture
def job() -> Iterator[MemoryJob]:
    with MemoryJob() as job:
        yield job


def give_up(job: MemoryJob, values: Sequence[bytes], *, topic: str = "orders", group: str = "baristas") -> None:
    """Let a group reject messages; the reason is the value."""

    def reject(message: object) -> None:
        raise Reject(getattr(message, "value", b"").decode())

    job.write(topic, 0, values)
    with job.consumer(group, topics=[topic]) as consumer:
        run_handler(consumer, reject, count=len(values))


def values(letters: Iterator[Letter]) -> list[bytes | None]:
    return [letter.value for letter in letters]


def popped(job: MemoryJob, group: str, topic: str = "orders") -> list[bytes]:
    with job.consumer(group) as consumer:
        found = consumer.pop(topic, 0, 10_000).messages
        assert all(message.attempt == 1 for message in found)
        consumer.ack(found)
        return [message.value or b"" for message in found]


def test_a_redrive_reaches_the_group_that_gave_up_and_no_other(job: MemoryJob) -> None:
    give_up(job, [b"mocha", b"latte"])
    assert popped(job, "till") == [b"mocha", b"latte"]
    report = job.dead_letters().redrive()
    assert (report.letters, report.messages, report.unredriven_count, report.duplicates) == (2, 2, 0, 0)
    assert report.letters_of == {("baristas", "orders"): 2}
    assert popped(job, "till") == []
    assert popped(job, "baristas") == [b"mocha", b"latte"]


def test_a_redrive_to_the_topic_reaches_every_group(job: MemoryJob) -> None:
    give_up(job, [b"mocha"])
    popped(job, "till")
    job.dead_letters().redrive(to="topic")
    assert popped(job, "till") == popped(job, "baristas") == [b"mocha"]


def test_what_is_handled_is_shown_when_asked_for_and_not_handled_again(job: MemoryJob) -> None:
    give_up(job, [b"mocha", b"latte"])
    dead_letters = job.dead_letters()
    dead_letters.redrive(LetterSelection(reason="mocha"), comment="the milk is back", by="anna@bar")
    job.advance(5)
    dead_letters.purge(comment="stale", by="ben@bar")
    assert [*dead_letters.list()] == []
    mocha, latte = (letter.handling for letter in dead_letters.list(handled=True))
    assert mocha is not None
    assert latte is not None
    assert (mocha.action, mocha.to, mocha.sent, mocha.by, mocha.comment) == (
        "redriven",
        "group",
        [(2, 2)],
        "anna@bar",
        "the milk is back",
    )
    assert (latte.action, latte.to, latte.sent, latte.at_ms - mocha.at_ms) == ("purged", None, [], 5)
    assert (dead_letters.redrive().letters, dead_letters.purge().letters) == (0, 0)
    assert popped(job, "baristas") == [b"mocha"]


def test_what_fails_again_is_a_new_letter(job: MemoryJob) -> None:
    give_up(job, [b"mocha"])
    dead_letters = job.dead_letters()
    dead_letters.redrive()
    with job.consumer("baristas") as consumer:
        consumer.reject(consumer.pop("orders").messages, "again")
    (letter,) = dead_letters.list()
    assert (letter.redrives, letter.reason, letter.queue_offset) == (1, "again", 1)


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        (LetterSelection(), [b"one", b"two", b"three"]),
        (LetterSelection(topic="orders"), [b"one", b"two"]),
        (LetterSelection(group="till"), [b"three"]),
        (LetterSelection(topic="orders", group="till"), []),
        (LetterSelection(reason="t*"), [b"two", b"three"]),
        (LetterSelection(reason="t"), []),
        (LetterSelection(since_ms=1_000_060), [b"two", b"three"]),
        (LetterSelection(text="w"), [b"two"]),
        (LetterSelection(text="two", group="till"), []),
        (LetterSelection(places=frozenset([(0, 0), (0, 2)])), [b"one", b"three"]),
    ],
    ids=str,
)
def test_a_selection_is_what_has_all_its_properties(
    job: MemoryJob, selection: LetterSelection, found: list[bytes]
) -> None:
    give_up(job, [b"one"])
    job.advance(60)
    give_up(job, [b"two"])
    give_up(job, [b"three"], topic="bills", group="till")
    dead_letters = job.dead_letters()
    assert values(dead_letters.list(selection)) == found
    assert dead_letters.redrive(selection, dry_run=True).letters == len(found)
    assert values(dead_letters.list(selection)) == found
    assert dead_letters.redrive(selection).letters == len(found)
    assert values(dead_letters.list(selection)) == []


def test_a_reason_is_also_what_the_handler_raised(job: MemoryJob) -> None:
    def fail(_: object) -> None:
        message = "the bank is away"
        raise ConnectionError(message)

    job.write("orders", 0, [b"mocha"])
    with job.consumer("baristas", topics=["orders"], max_attempts=1) as consumer:
        run_handler(consumer, fail, count=1)
    (letter,) = job.dead_letters().list(LetterSelection(reason="*ConnectionError*"))
    assert (letter.reason, letter.cause) == ("attempt_limit", "handler: ConnectionError: the bank is away")


@pytest.mark.parametrize(
    "value", ["Ada José".encode(), b'{"name": "Ada Jos\\u00e9"}', b"?"], ids=["as it is", "escaped", "in a header"]
)
def test_a_text_is_found_wherever_a_message_has_it(job: MemoryJob, value: bytes) -> None:
    headers = [("name", "Ada José".encode())] if value == b"?" else []
    job.write("orders", 0, [value], headers=headers)
    job.write("orders", 0, [b"Bea"], headers=[("empty", None)])
    with job.consumer("baristas") as consumer:
        consumer.reject(consumer.pop("orders", 0, 10).messages)
    dead_letters = job.dead_letters()
    assert values(dead_letters.list(LetterSelection(text="José"))) == [value]
    assert values(dead_letters.list(LetterSelection(text="josé"))) == []


def test_a_limit_takes_the_oldest_and_the_next_call_goes_on(job: MemoryJob) -> None:
    give_up(job, [b"1", b"2", b"3"])
    dead_letters = job.dead_letters()
    assert dead_letters.redrive(limit=2).letters == 2
    assert values(dead_letters.list()) == [b"3"]
    assert dead_letters.redrive(limit=2).letters == 1


def redrives(job: MemoryJob) -> list[tuple[str, str, list[tuple[int, int]], str]]:
    sent = [command for command in job.records if isinstance(command, Redrive)]
    return [(command.topic, command.group, command.offsets, command.to) for command in sent]


def test_the_job_hears_of_it_before_anything_is_sent(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each queue and group in a transaction once; a purge sends no message, and announces nothing."""
    monkeypatch.setattr(handling_run, "TRANSACTION_LETTERS_MAX", 3)
    give_up(job, [b"0", b"1"])
    job.write("orders", 0, [b"2"])
    popped(job, "baristas")
    give_up(job, [b"3"])
    give_up(job, [b"4"], topic="bills", group="till")
    dead_letters = job.dead_letters()
    report = dead_letters.redrive(to="topic", by="anna@bar", comment="the milk is back")
    assert redrives(job) == [("orders", "baristas", [(0, 1), (3, 3)], "topic"), ("bills", "till", [(0, 0)], "topic")]
    kinds = [type(command).__name__ for command in job.records if getattr(command, "topic", "") == "orders"]
    assert kinds.index("Redrive") < len(kinds) - 1 - kinds[::-1].index("Dispatch")
    told = next(command for command in job.records if isinstance(command, Redrive))
    assert (told.by, told.comment, told.op_id) == ("anna@bar", "the milk is back", f"redrive-{report.call}-1")
    give_up(job, [b"5"])
    dead_letters.purge()
    dead_letters.redrive(dry_run=True)
    assert len(redrives(job)) == 2


def test_nothing_is_sent_while_the_job_does_not_know_a_queue(job: MemoryJob) -> None:
    give_up(job, [b"mocha"])
    give_up(job, [b"bill"], topic="bills")

    class Forgetful(MemoryLetterTopics):
        """Its job has lost the queue `orders/0`."""

        def announce(self, redrives: Sequence[Redrive]) -> list[Answer]:
            lost = {"orders": "drinks"}
            return super().announce(
                [msgspec.structs.replace(one, topic=lost.get(one.topic, one.topic)) for one in redrives]
            )

    with pytest.raises(NotDeclared, match="the job does not know drinks/0: the queue has not been declared yet"):
        DeadLetters("memory", topics=Forgetful(job)).redrive()
    assert [len(job.payloads.queue(topic, 0)) for topic in ("orders", "bills")] == [1, 1]
    assert job.dead_letters().redrive().letters == 2


def test_a_letter_of_an_offset_that_no_queue_has_is_left_and_holds_no_other_back(job: MemoryJob) -> None:
    give_up(job, [b"mocha"])
    (letter,) = job.payloads.queue("popstream.dead_letters", 0)
    headers = [(name, b"9" * 19 if name == "popstream.queue_offset" else value) for name, value in letter.headers]
    job.payloads.queue("popstream.dead_letters", 0).append(Payload(None, b"forged", headers, job.now_ms))
    report = job.dead_letters().redrive()
    assert (report.letters, [left.why for left in report.unredriven]) == (
        1,
        ["its headers are not those of a dead letter"],
    )


def test_a_second_copy_of_a_letter_is_recognised(job: MemoryJob) -> None:
    give_up(job, [b"mocha"])
    letters = job.payloads.queue("popstream.dead_letters", 0)
    letters.append(letters[0])
    dead_letters = job.dead_letters()
    report = dead_letters.redrive()
    assert (report.letters, report.duplicates) == (1, 1)
    assert [*dead_letters.list()] == []
    assert popped(job, "baristas") == [b"mocha"]


def test_what_cannot_be_redriven_is_left_and_named_and_the_rest_goes(job: MemoryJob) -> None:
    """A record that somebody else wrote into the topic, and one whose message was gone."""
    job.write("orders", 0, [b"gone"])
    with job.consumer("baristas") as consumer:
        messages = consumer.pop("orders").messages
        job.payloads.deleted.add(("orders", 0, 0))
        consumer.reject(messages, "late")
    job.payloads.queue("popstream.dead_letters", 0).append(Payload(None, b"?", [("trace", None)], job.now_ms))
    give_up(job, [b"mocha"])
    dead_letters = job.dead_letters()
    report = dead_letters.redrive()
    assert (report.letters, report.unredriven_count, [left.place for left in report.unredriven]) == (
        1,
        2,
        ["0/0", "0/1"],
    )
    assert "had left the log" in report.unredriven[0].why
    assert values(dead_letters.list()) == [b"", b"?"]
    assert dead_letters.purge().letters == 2
    assert [*dead_letters.list()] == []


class Refusing(MemoryLetterWriter):
    """Refuses batches with some values, as Kafka refuses a record that is too large."""

    def __init__(self, job: MemoryJob, refused: set[bytes | None]) -> None:
        super().__init__(job)
        self.opened = 0
        self._refused = refused

    def open(self) -> None:
        self.opened += 1

    def write(self, batch: Sequence[HandledLetter]) -> list[LetterHandling]:
        if any(one.letter.value in self._refused for one in batch):
            raise LetterRefusedError(Invalid("too large"))
        return super().write(batch)


class OtherTopics(MemoryLetterTopics):
    """The topics of a job in memory, with another writer; none of them is built by the job."""

    def __init__(self, job: MemoryJob, writer: MemoryLetterWriter) -> None:
        super().__init__(job)
        self._writer = writer
        self.dispatched: list[dict[tuple[str, int], Sequence[tuple[int, int]]]] = []

    def writer(self) -> MemoryLetterWriter:
        return self._writer

    def type_of(self, topic: str) -> None:
        """Nobody builds it."""

    def dispatch(self, sent: object) -> None:
        assert isinstance(sent, dict)
        self.dispatched.append(sent)


def test_a_letter_that_kafka_refuses_keeps_no_other_from_going(job: MemoryJob) -> None:
    give_up(job, [b"%d" % number for number in range(20)])
    writer = Refusing(job, {b"7", b"13"})
    dead_letters = DeadLetters("memory", topics=OtherTopics(job, writer))
    report = dead_letters.redrive()
    assert (report.letters, {left.why for left in report.unredriven}) == (18, {"too large"})
    assert values(dead_letters.list()) == [b"7", b"13"]
    assert sorted(popped(job, "baristas")) == sorted(b"%d" % number for number in range(20) if number not in (7, 13))
    assert writer.opened > 2


def test_the_next_redrive_dispatches_what_a_killed_one_has_committed(job: MemoryJob) -> None:
    """For a topic that the job does not build, and also if nothing is left to redrive."""
    give_up(job, [b"1", b"2"])
    topics = OtherTopics(job, MemoryLetterWriter(job))
    dead_letters = DeadLetters("memory", topics=topics)
    dead_letters.redrive()
    assert topics.dispatched == [{("orders", 0): [(2, 3)]}]
    topics.dispatched.clear()
    assert dead_letters.purge().letters == 0
    assert topics.dispatched == []
    assert dead_letters.redrive().letters == 0
    assert topics.dispatched == [{("orders", 0): [(2, 3)]}]


class WithoutKey(OtherTopics):
    """The job declares no queue for this client."""

    def declare(self, queues: Iterable[QueueName]) -> None:
        message = f"{[*queues]}: the job wants an admin key"
        raise Invalid(message)


def test_nothing_is_sent_to_a_topic_whose_messages_could_not_be_dispatched(job: MemoryJob) -> None:
    give_up(job, [b"1", b"2"])
    topics = WithoutKey(job, MemoryLetterWriter(job))
    with pytest.raises(Invalid, match=r"\[\('orders', 0\)\]: the job wants an admin key"):
        DeadLetters("memory", topics=topics).redrive()
    assert len(job.payloads.queue("orders", 0)) == 2
    assert values(job.dead_letters().list()) == [b"1", b"2"]
    assert DeadLetters("memory", topics=topics).purge(LetterSelection(reason="1")).letters == 1
    permitted = OtherTopics(job, MemoryLetterWriter(job))
    assert DeadLetters("memory", topics=permitted).redrive().letters == 1
    assert permitted.dispatched == [{("orders", 0): [(2, 2)]}]


class Killed(MemoryLetterWriter):
    """Commits a number of transactions, and no more."""

    left = 1

    def write(self, batch: Sequence[HandledLetter]) -> list[LetterHandling]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().write(batch)


def test_what_was_stopped_goes_on_where_it_ended(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_reader, "FETCH_RECORDS", 7)
    monkeypatch.setattr(handling_run, "TRANSACTION_LETTERS_MAX", 10)
    count = 21
    give_up(job, [b"%d" % number for number in range(count)])
    with pytest.raises(KeyboardInterrupt):
        DeadLetters("memory", topics=OtherTopics(job, Killed(job))).redrive()
    dead_letters = job.dead_letters()
    assert len([*dead_letters.list()]) == count - 10
    progress: list[int] = []
    report = dead_letters.redrive(on_progress=lambda report: progress.append(report.letters))
    assert (report.letters, progress) == (11, [10, 11])
    assert popped(job, "baristas") == [b"%d" % number for number in range(count)]


class LostSight(MemoryLetterTopics):
    """From the moment when the writer opens, Kafka does not know the topic of handled letters."""

    is_lost = False

    def bounds(self, topic: str) -> dict[int, LogBounds]:
        return {} if topic == HANDLED and self.is_lost else super().bounds(topic)

    def writer(self) -> MemoryLetterWriter:
        self.is_lost = True
        return super().writer()


def test_nothing_is_sent_while_what_was_handled_cannot_be_read(job: MemoryJob) -> None:
    give_up(job, [b"mocha"])
    job.dead_letters().redrive()
    topics = LostSight(job)
    dead_letters = DeadLetters("memory", topics=topics)
    with pytest.raises(Invalid, match=f"there is no topic {HANDLED}: a job of this version"):
        dead_letters.redrive()
    assert len(job.payloads.queue("orders", 0)) == 2
    with pytest.raises(Invalid, match="there is no topic"):
        dead_letters.purge(dry_run=True)


def test_letters_of_a_job_without_a_topic_for_what_is_handled_can_be_read(job: MemoryJob) -> None:
    give_up(job, [b"mocha"])
    topics = LostSight(job)
    topics.is_lost = True
    assert values(DeadLetters("memory", topics=topics).list()) == [b"mocha"]


def test_erasing_stops_at_the_first_letter_that_nobody_has_handled(job: MemoryJob) -> None:
    give_up(job, [b"1", b"2", b"3"])
    dead_letters = job.dead_letters()
    planned = dead_letters.purge(LetterSelection(reason="[13]"), dry_run=True)
    assert dead_letters.erase(dry_run=True) == {}
    assert dead_letters.erase(dry_run=True, also_handled=planned.places.keys()) == {0: 1}
    dead_letters.purge(LetterSelection(places=frozenset(planned.places.values())))
    assert dead_letters.erase() == {0: 1}
    assert values(dead_letters.list(handled=True)) == [b"2", b"3"]
    dead_letters.redrive()
    assert dead_letters.erase(dry_run=True) == {0: 2}
    assert dead_letters.erase() == {0: 2}
    assert dead_letters.erase() == {}
    assert values(dead_letters.list(handled=True)) == []


def test_an_erasure_that_is_tried_knows_second_copies(job: MemoryJob) -> None:
    give_up(job, [b"1"])
    letters = job.payloads.queue("popstream.dead_letters", 0)
    letters.append(letters[0])
    dead_letters = job.dead_letters()
    planned = dead_letters.purge(dry_run=True)
    assert planned.duplicates == 1
    assert dead_letters.erase(dry_run=True, also_handled=planned.places.keys()) == {0: 2}
    with pytest.raises(ValueError, match="for a dry run"):
        dead_letters.erase(also_handled=planned.places.keys())


def test_what_a_newer_version_recorded_still_counts_as_handled(job: MemoryJob) -> None:
    give_up(job, [b"mocha"])
    dead_letters = job.dead_letters()
    (letter,) = dead_letters.list()
    key = letter.letter_id.encode()
    job.payloads.queue(HANDLED, 0).append(Payload(key, b'{"v":2,"action":"moved"}', [], job.now_ms))
    assert ([*dead_letters.list()], dead_letters.redrive().letters) == ([], 0)
    assert [letter.handling for letter in dead_letters.list(handled=True)] == [None]


def test_a_letter_that_does_not_exist_is_an_error(job: MemoryJob) -> None:
    give_up(job, [b"mocha"])
    dead_letters = job.dead_letters()
    assert dead_letters.get((0, 0)).value == b"mocha"
    for place in ((0, 1), (1, 0)):
        with pytest.raises(Invalid, match=f"there is no dead letter {place[0]}/{place[1]}"):
            dead_letters.get(place)
        with pytest.raises(Invalid, match="there is no dead letter"):
            dead_letters.redrive(LetterSelection(places=frozenset([place])))
    for text in ("", "1", "1/", "1/2/3", "-1/2", "a/b"):
        with pytest.raises(Invalid, match="is not the place of a dead letter"):
            parse_place(text)
