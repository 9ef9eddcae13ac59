"""Claim: each message has its own result, in order; no send holds up another. Method: a writer that we answer for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from popstream.errors import ClientClosed, NotWritten, OutcomeUnknown
from popstream.outcome import SendResult
from popstream.send.accumulator import BatchLimits
from popstream.send.ordered_sender import OrderedSender
from popstream.send.outgoing import Destination, Outgoing, OutgoingMessage, SendFuture
from popstream.send.shipment import NOT_ASKED, SendAgain, SendOutcome, Shipment
from popstream.wire.base_errors import Invalid

WAIT_S = 60.0
REFUSED = SendOutcome(error=Invalid("refused"), retry=SendAgain.ALONE)
Judge = Callable[[Outgoing, Shipment], SendOutcome]


class Writer:
    """Answers at once with what `judge` says, or, while `holds`, when `answer` is called."""

    def __init__(self) -> None:
        self.shipments: list[Shipment] = []
        self.held: list[tuple[Shipment, Callable[[Sequence[SendOutcome]], None]]] = []
        self.holds = False
        self.is_away = False
        self.judge: Judge = lambda _, __: self.written()
        self.given_up: list[Shipment] = []
        self._next_offset = 0

    def written(self) -> SendOutcome:
        self._next_offset += 1
        return SendOutcome(SendResult("orders", 0, self._next_offset - 1, 0))

    def write(self, shipment: Shipment, on_done: Callable[[Sequence[SendOutcome]], None]) -> bool:
        if self.is_away:
            on_done([NOT_ASKED] * len(shipment.messages))
            return False
        self.shipments.append(shipment)
        if self.holds:
            self.held.append((shipment, on_done))
        else:
            on_done([self.judge(outgoing, shipment) for outgoing in shipment.messages])
        return True

    def answer(self) -> None:
        held, self.held = self.held, []
        for shipment, on_done in held:
            on_done([self.judge(outgoing, shipment) for outgoing in shipment.messages])

    def give_up(self, shipment: Shipment) -> None:
        self.given_up.append(shipment)

    def queue_ids(self, _topic: str) -> Sequence[int]:
        return [0, 1, 2]

    @property
    def values(self) -> list[list[bytes | None]]:
        return [[outgoing.message.value for outgoing in shipment.messages] for shipment in self.shipments]


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def sender(writer: Writer, request: pytest.FixtureRequest) -> Iterator[OrderedSender]:
    made = OrderedSender("test", BatchLimits(hold_ms=getattr(request, "param", 1), batch_bytes_max=8), writer)
    yield made
    made.close()
    made.end()


def send(
    sender: OrderedSender,
    value: bytes,
    queue_id: int | None = 0,
    *,
    key: bytes | None = None,
    deadline_s: float = WAIT_S,
    is_alone: bool = False,
) -> SendFuture:
    message = OutgoingMessage(topic="orders", value=value, key=key)
    outgoing = Outgoing(message, SendFuture(), 0, time.monotonic() + deadline_s)
    destination = Destination("orders", queue_id, True, None, True)
    sender.submit(destination, outgoing, is_waited=False, is_alone=is_alone)
    sender.wait_for_room([outgoing.future])
    return outgoing.future


def until(is_so: Callable[[], object]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.001)


def test_what_waits_together_goes_together(sender: OrderedSender, writer: Writer) -> None:
    results = [send(sender, b"%d" % number) for number in range(5)]
    assert [future.result(WAIT_S).queue_offset for future in results] == [0, 1, 2, 3, 4]
    assert [value for values in writer.values for value in values] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(writer.shipments) < 5
    assert sender._accumulator.buffered_bytes == 0


def test_a_queue_has_one_load_on_its_way(sender: OrderedSender, writer: Writer) -> None:
    writer.holds = True
    first = send(sender, b"123456789")
    until(lambda: writer.held)
    others = [send(sender, b"12345") for _ in range(6)]
    elsewhere = send(sender, b"123456789", 1)
    until(lambda: len(writer.held) == 2)
    writer.answer()
    assert first.result(WAIT_S)
    assert elsewhere.result(WAIT_S)
    until(lambda: len(writer.held) == 3)
    writer.answer()
    assert [future.result(WAIT_S).queue_offset for future in others] == [2, 3, 4, 5, 6, 7]


def test_a_send_that_takes_long_holds_up_no_other_queue(sender: OrderedSender, writer: Writer) -> None:
    writer.holds = True
    slow = send(sender, b"123456789", 0)
    until(lambda: writer.held)
    writer.holds = False
    assert send(sender, b"v", 1).result(WAIT_S)
    assert not slow.done()
    writer.answer()


@pytest.mark.parametrize("sender", [30_000], indirect=True)  # a batch closes when it has 8 bytes
def test_a_refused_batch_is_sent_again_one_by_one_ahead_of_what_follows(sender: OrderedSender, writer: Writer) -> None:
    """The one that Kafka refuses by itself too fails alone."""

    def judge(outgoing: Outgoing, shipment: Shipment) -> SendOutcome:
        if len(shipment.messages) > 1:
            return REFUSED
        return SendOutcome(error=Invalid("refused")) if outgoing.message.value == b"bad" else writer.written()

    writer.holds = True
    writer.judge = judge
    futures = [send(sender, value, key=b"k") for value in (b"one", b"bad", b"two")]
    until(lambda: writer.held)
    behind = send(sender, b"behind it", key=b"k")
    writer.holds = False
    writer.answer()
    assert behind.result(WAIT_S).queue_offset == 2
    assert [futures[0].result(0).queue_offset, futures[2].result(0).queue_offset] == [0, 1]
    with pytest.raises(Invalid, match="refused"):
        futures[1].result(0)
    assert writer.values == [[b"one", b"bad", b"two"], [b"one"], [b"bad"], [b"two"], [b"behind it"]]
    assert not any(shipment.is_unit for shipment in writer.shipments[1:])


def test_a_message_is_not_sent_again_behind_one_of_its_key(sender: OrderedSender, writer: Writer) -> None:
    """Two batches in one load; Kafka refuses the first and writes the second."""
    writer.holds = True
    blocker = send(sender, b"123456789")
    until(lambda: writer.held)
    first = [send(sender, b"12345", key=key) for key in (b"k", b"l")]
    second = [send(sender, b"56789", key=key) for key in (b"k", b"m")]
    writer.judge = lambda outgoing, shipment: (
        REFUSED if len(shipment.messages) > 1 and outgoing.message.value == b"12345" else writer.written()
    )
    writer.answer()
    until(lambda: len(writer.held) == 2)
    writer.holds = False
    writer.answer()
    assert blocker.result(WAIT_S)
    assert all(future.result(WAIT_S) for future in second)
    assert first[1].result(WAIT_S)
    with pytest.raises(NotWritten):
        first[0].result(WAIT_S)


def test_what_may_be_written_is_not_sent_again(sender: OrderedSender, writer: Writer) -> None:
    writer.judge = lambda _, __: SendOutcome(error=OutcomeUnknown("no answer"))
    futures = [send(sender, value) for value in (b"one", b"two")]
    for future in futures:
        with pytest.raises(OutcomeUnknown):
            future.result(WAIT_S)
    assert sorted(value for values in writer.values for value in values if value) == [b"one", b"two"]


def test_what_passes_is_tried_until_its_time_is_over(sender: OrderedSender, writer: Writer) -> None:
    writer.judge = lambda _, __: SendOutcome(error=NotWritten("no leader"), retry=SendAgain.ALONE)
    late = send(sender, b"late", deadline_s=0.3)
    with pytest.raises(NotWritten, match="no leader"):
        late.result(WAIT_S)
    assert 2 <= len(writer.shipments) <= 5
    writer.judge = lambda _, __: writer.written()
    assert send(sender, b"good").result(WAIT_S)


def test_a_batch_that_kafka_was_not_asked_about_is_tried_again_as_it_is(sender: OrderedSender, writer: Writer) -> None:
    writer.is_away = True
    futures = [send(sender, value) for value in (b"one", b"two", b"three..", b"four")]
    time.sleep(0.05)
    assert writer.shipments == []
    writer.is_away = False
    assert [future.result(WAIT_S).queue_offset for future in futures] == [0, 1, 2, 3]
    assert all(shipment.is_unit for shipment in writer.shipments if len(shipment.messages) > 1)
    assert not any(shipment.is_by_itself for shipment in writer.shipments)


def test_what_is_too_late_is_not_handed_over_and_the_rest_of_its_batch_is(
    sender: OrderedSender, writer: Writer
) -> None:
    writer.holds = True
    blocker = send(sender, b"123456789")
    until(lambda: writer.held)
    late, good = send(sender, b"late", deadline_s=0.05), send(sender, b"good.")
    time.sleep(0.1)
    writer.holds = False
    writer.answer()
    assert blocker.result(WAIT_S)
    assert good.result(WAIT_S)
    with pytest.raises(NotWritten, match="busy, or did not answer"):
        late.result(WAIT_S)
    assert b"late" not in [value for values in writer.values for value in values]


def test_a_load_without_an_answer_is_given_up_and_the_next_one_goes(writer: Writer) -> None:
    sender = OrderedSender("test", BatchLimits(hold_ms=1), writer, answer_timeout_s=0.05)
    writer.holds = True
    lost = send(sender, b"lost")
    with pytest.raises(OutcomeUnknown, match="in time"):
        lost.result(WAIT_S)
    assert writer.given_up == writer.shipments
    late = writer.held
    writer.holds = False
    assert send(sender, b"next").result(WAIT_S).queue_offset == 0
    writer.held = late
    writer.answer()
    assert send(sender, b"last").result(WAIT_S).queue_offset == 2
    sender.close()
    sender.end()


def test_many_loads_without_an_answer_do_not_end_the_guard(writer: Writer) -> None:
    """While the results are slow to be told, a load that was given up is due never: that is no time to wait until."""
    sender = OrderedSender("test", BatchLimits(hold_ms=1), writer, answer_timeout_s=0.05)
    writer.holds = True
    lost = [send(sender, b"lost", queue_id) for queue_id in range(8)]
    for future in lost:
        future.add_done_callback(lambda _: time.sleep(0.05))
    until(lambda: len(writer.held) == 8)
    for future in lost:
        with pytest.raises(OutcomeUnknown):
            future.result(WAIT_S)
    writer.holds = False
    assert send(sender, b"next").result(WAIT_S)
    sender.close()
    sender.end()


def test_a_busy_queue_leaves_room_for_the_others(writer: Writer) -> None:
    sender = OrderedSender("test", BatchLimits(hold_ms=1, batch_bytes_max=100, total_bytes_max=8 * 200), writer)
    writer.holds = True
    busy = [send(sender, b"v" * 200, 0, is_alone=True) for _ in range(1)]
    until(lambda: writer.held)
    sending = threading.Thread(target=lambda: [send(sender, b"v" * 200, 0) for _ in range(5)])
    sending.start()
    other = threading.Thread(target=lambda: busy.append(send(sender, b"other", 1)))
    other.start()
    until(lambda: len(sender._queues) == 2)
    served: list[int] = []
    while len(served) < 2:
        writer.answer()
        until(lambda: writer.held)
        served += [shipment.queue_id for shipment, _ in writer.held]
    assert 1 in served
    writer.holds = False
    writer.answer()
    for thread in (sending, other):
        thread.join(WAIT_S)
    assert all(future.result(WAIT_S) for future in busy)
    sender.close()
    sender.end()


def test_a_callback_that_throws_harms_no_other(sender: OrderedSender, writer: Writer) -> None:
    class Thrown(BaseException):
        pass

    def throw(_: object) -> None:
        raise Thrown

    writer.holds = True
    futures = [send(sender, b"%d" % number) for number in range(3)]
    futures[0].add_done_callback(throw)
    until(lambda: writer.held)
    writer.holds = False
    writer.answer()
    assert [future.result(WAIT_S).queue_offset for future in futures] == [0, 1, 2]
    assert send(sender, b"next").result(WAIT_S)
    assert sender._accumulator.buffered_bytes == 0


def test_a_writer_that_raises_is_an_outcome(sender: OrderedSender, writer: Writer) -> None:
    def fail(_: object, __: object) -> SendOutcome:
        raise ArithmeticError("no")

    writer.judge = fail
    with pytest.raises(OutcomeUnknown, match="ArithmeticError"):
        send(sender, b"v").result(WAIT_S)
    writer.judge = lambda _, __: writer.written()
    assert send(sender, b"v").result(WAIT_S)


def test_beyond_the_buffer_a_sender_waits_for_its_own_message_behind_the_others(writer: Writer) -> None:
    sender = OrderedSender("test", BatchLimits(hold_ms=30_000, total_bytes_max=1), writer)
    writer.holds = True
    first = send(sender, b"one")
    waiting = threading.Thread(target=send, args=(sender, b"two"))
    waiting.start()
    until(lambda: len(writer.held) == 2)
    assert waiting.is_alive()
    assert writer.values == [[b"one"], [b"two"]]
    writer.holds = False
    writer.answer()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert first.result(WAIT_S)
    assert sender._accumulator.buffered_bytes == 0
    sender.close()
    sender.end()


def test_a_callback_may_send_however_full_the_buffer_is(writer: Writer) -> None:
    sender = OrderedSender("test", BatchLimits(hold_ms=1, total_bytes_max=1), writer)
    done = threading.Event()
    writer.holds = True
    first = send(sender, b"one")

    def send_more(_: object) -> None:
        send(sender, b"two")
        send(sender, b"three").add_done_callback(lambda _: done.set())

    first.add_done_callback(send_more)
    until(lambda: writer.held)
    writer.holds = False
    writer.answer()
    assert done.wait(WAIT_S)
    sender.close()
    sender.end()


def test_messages_without_a_queue_go_round_batch_by_batch(
    sender: OrderedSender, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popstream.send.ordered_sender._first_turn", lambda: 3)
    for _ in range(4):
        assert send(sender, b"123456789", None).result(WAIT_S)
    assert [shipment.queue_id for shipment in writer.shipments] == [0, 1, 2, 0]


def test_flush_waits_for_what_was_before_it_alone(sender: OrderedSender, writer: Writer) -> None:
    writer.holds = True
    before = send(sender, b"before", 0)
    assert not sender.flush(0.05)
    send(sender, b"after", 1)
    flushed: list[bool] = []
    waiting = threading.Thread(target=lambda: flushed.append(sender.flush(WAIT_S)))
    until(lambda: len(writer.held) == 2)
    waiting.start()
    writer.answer()
    waiting.join(WAIT_S)
    assert flushed == [True]
    assert before.done()


def test_closing_tells_every_sender(writer: Writer) -> None:
    """On its way: unknown. Behind that, or not sent yet: not written."""
    sender = OrderedSender("test", BatchLimits(hold_ms=30_000, batch_bytes_max=8), writer)
    writer.holds = True
    sent = send(sender, b"123456789")
    until(lambda: writer.held)
    behind, waiting = send(sender, b"123456789"), send(sender, b"v")
    sender.close()
    sender.end()
    with pytest.raises(OutcomeUnknown):
        sent.result(0)
    for future in (behind, waiting):
        with pytest.raises(NotWritten):
            future.result(0)
    with pytest.raises(ClientClosed, match="producer test is closed"):
        send(sender, b"v")
    assert sender._accumulator.buffered_bytes == 0


def test_results_are_futures_like_others(sender: OrderedSender, writer: Writer) -> None:
    """`SendFuture` has its own way to wait."""
    writer.holds = True
    futures = [SendFuture() for _ in range(3)]
    for future in futures:
        outgoing = Outgoing(OutgoingMessage(topic="orders", value=b"v"), future, 0, time.monotonic() + WAIT_S)
        sender.submit(Destination("orders", 0, True, None, True), outgoing, is_waited=False)
    with pytest.raises(TimeoutError):
        futures[2].result(0.01)
    assert not futures[0].cancel()
    threading.Timer(0.05, lambda: futures[0].set_result(SendResult("other", 0, 9, 0))).start()
    with pytest.raises(TimeoutError):
        futures[1].exception(0.2)
    assert futures[0].result(0).topic == "other"
    until(lambda: writer.held)
    writer.holds = False
    writer.answer()
    done, left = concurrent.futures.wait(futures[1:], WAIT_S)
    assert (len(done), left) == (2, set())
    assert {future.result() for future in concurrent.futures.as_completed(futures[1:], WAIT_S)}

    async def wait() -> SendResult:
        return await asyncio.wrap_future(futures[2])

    assert asyncio.run(wait()).topic == "orders"
