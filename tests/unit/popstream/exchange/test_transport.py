"""Claim: every operation gets its own answer, once, or an honest error. Method: a link that answers as told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from popstream import AdminKey, AnswerTimeout, ClientClosed, ClientSettings, Transport
from popstream.exchange import transport as transport_module
from popstream.exchange.broker_clock import BrokerClock
from popstream.exchange.pending_operations import PendingOperation, PendingOperations, join_parts
from popstream.exchange.send_window import SendWindow
from popstream.history.recorder import Invoke, read_history
from popstream.settings import RESEND_WINDOW_MS
from popstream.testing._memory_link import MemoryLink, frame_of
from popstream.wire.answer import Answer, LeasedRange, Run
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import Command, Policy, Pop, Tick
from popstream.wire.reason import Reason
from popstream.wire.signing import KeyRing, OperationVerifier
from tests.support.threads import eventually

TICK = Tick(v=1, topic="orders", queue_id=5)
decode = msgspec.json.Decoder(Command).decode


def answer_to(command: Command, **fields: object) -> Answer:
    given: dict[str, Any] = {"code": 0, "reason": Reason.OK, "applied": True, "now_ms": 1, **fields}
    return Answer(op_id=str(command.op_id), type="tick", topic=command.topic, queue_id=command.queue_id, **given)


@contextmanager
def transport_with(
    answer: Callable[[bytes, bytes], Iterable[bytes]] = lambda _key, _value: (),
    **settings: Any,
) -> Iterator[tuple[Transport, MemoryLink]]:
    link = MemoryLink(answer)
    with Transport(ClientSettings(bootstrap_servers="memory", client_id="c", **settings), link=link) as transport:
        yield transport, link


def test_an_operation_is_addressed_and_answered() -> None:
    with transport_with(lambda _key, value: [frame_of([answer_to(decode(value))])]) as (transport, link):
        answer = transport.request(TICK)
        key, value = link.sent[0]
    sent = decode(value)
    assert key == b"orders\x005"
    assert (sent.op_id, sent.reply_to) == (answer.op_id, 3)
    assert link.is_closed


def test_answers_find_their_operation_in_any_order() -> None:
    with transport_with() as (transport, link):
        futures = [transport.submit(TICK) for _ in range(3)]
        commands = [decode(value) for _, value in link.sent]
        link.bring(frame_of(answer_to(command, now_ms=index) for index, command in reversed([*enumerate(commands)])))
        assert [future.result(60).now_ms for future in futures] == [0, 1, 2]


def test_strange_answers_and_second_answers_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with transport_with() as (transport, link):
        first, second = transport.submit(TICK), transport.submit(TICK)
        one, two = (decode(value) for _, value in link.sent)
        link.bring(b"not a frame")
        link.bring(frame_of([answer_to(msgspec.structs.replace(one, op_id="another client's"))]))
        link.bring(frame_of([answer_to(one, now_ms=1), answer_to(one, now_ms=2)]))
        assert first.result(60).now_ms == 1
        link.bring(frame_of([answer_to(one, now_ms=3), answer_to(two, now_ms=4)]))
        assert second.result(60).now_ms == 4
        assert transport.waiting_count == 0
    assert "cannot decode" in caplog.text


def test_an_answer_a_newer_job_writes_spoils_no_other() -> None:
    with transport_with() as (transport, link):
        future = transport.submit(TICK)
        known = frame_of([answer_to(decode(link.sent[0][1]))])
        link.bring(known.replace(b"[", b'[{"op_id":"x","type":"pop","reason":"NOT_INVENTED_YET"},', 1))
        assert future.result(60).reason is Reason.OK


def test_without_an_answer_the_same_bytes_are_sent_again() -> None:
    answers: list[bytes] = []

    def answer(_key: bytes, value: bytes) -> list[bytes]:
        answers.append(value)
        return [frame_of([answer_to(decode(value))])] if len(answers) == 3 else []

    with transport_with(answer, resend_after_ms=20, resend_after_ms_max=30) as (transport, link):
        transport.request(TICK)
        assert len(link.sent) == 3
        assert len(set(link.sent)) == 1


def test_a_send_that_fails_is_tried_again_soon() -> None:
    with transport_with(lambda _key, value: [frame_of([answer_to(decode(value))])]) as (transport, link):
        link.failures = [OSError("broken"), OSError("still broken")]
        transport.request(TICK)
        assert len(link.sent) == 1


def test_an_outage_is_one_warning_and_the_next_outage_another(caplog: pytest.LogCaptureFixture) -> None:
    with transport_with(lambda _key, value: [frame_of([answer_to(decode(value))])]) as (transport, link):
        for outage in (1, 2):
            link.failures = [OSError(f"broken {outage}"), OSError("still broken")]
            transport.request(TICK)
    warnings = [record.message.partition("again: ")[2] for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["broken 1", "broken 2"]


def test_after_the_deadline_the_outcome_is_unknown_and_says_so() -> None:
    with transport_with(answer_timeout_ms=50) as (transport, link):
        with pytest.raises(AnswerTimeout, match="in the log") as raised:
            transport.request(TICK)
        assert raised.value.in_log
        assert raised.value.op_ids == (decode(link.sent[0][1]).op_id,)
        link.failures = [OSError("broken")] * 100
        with pytest.raises(AnswerTimeout, match="unknown") as raised:
            transport.request(TICK)
        assert not raised.value.in_log


def test_a_pop_has_its_poll_time_besides() -> None:
    pop = Pop(v=1, topic="t", queue_id=0, group="g", max_messages=1, invisible_time_ms=1, poll_time_ms=400)
    with transport_with(answer_timeout_ms=100, resend_after_ms=10) as (transport, link):
        began_s = time.monotonic()
        future = transport.submit(pop)
        time.sleep(0.3)
        assert len(link.sent) == 1
        with pytest.raises(AnswerTimeout):
            future.result()
        assert time.monotonic() - began_s >= 0.5


def test_close_ends_those_who_wait() -> None:
    with transport_with() as (transport, _):
        future = transport.submit(TICK)
        transport.close()
        with pytest.raises(ClientClosed):
            future.result(60)
        with pytest.raises(ClientClosed, match="transport c is closed"):
            transport.submit(TICK)
        with pytest.raises(ClientClosed):
            transport.post(TICK)


def test_a_posted_operation_wants_no_answer() -> None:
    with transport_with() as (transport, link):
        transport.post(TICK)
        assert decode(link.sent[0][1]).reply_to is None
        assert transport.waiting_count == 0


def test_a_record_the_job_would_reject_is_not_sent() -> None:
    with transport_with(ops_bytes_max=50) as (transport, link):
        with pytest.raises(Invalid, match="bytes"):
            transport.submit(TICK)
        assert link.sent == []


def test_one_op_id_waits_once() -> None:
    named = msgspec.structs.replace(TICK, op_id="mine")
    with transport_with() as (transport, _):
        transport.submit(named)
        with pytest.raises(ValueError, match="in flight"):
            transport.submit(named)


def test_parts_are_joined_in_their_order_whatever_order_they_come_in() -> None:
    run = Run(entry=0, first=0, last=0, code=0, reason=Reason.OK, applied=True)
    with transport_with() as (transport, link):
        future = transport.submit(TICK)
        command = decode(link.sent[0][1])
        parts = [
            answer_to(
                command,
                part=part,
                parts=3,
                runs=[msgspec.structs.replace(run, entry=part)],
                handles=[f"h{part}"],
                messages=[LeasedRange(part, part, 1)],
                commit_offsets={f"g{part}": part},
            )
            for part in range(3)
        ]
        for part in (2, 0, 2):
            link.bring(frame_of([parts[part]]))
        time.sleep(0.05)
        assert not future.done()
        link.bring(frame_of([parts[1]]))
        whole = future.result(60)
    assert [found.entry for found in whole.runs] == [0, 1, 2]
    assert whole.handles == ["h0", "h1", "h2"]
    assert [leased.first for leased in whole.messages] == [0, 1, 2]
    assert whole.commit_offsets == {"g0": 0, "g1": 1, "g2": 2}
    assert (whole.part, whole.parts) == (0, 1)
    assert join_parts(parts) == whole


def test_re_sends_end_before_the_job_forgets_the_op_id() -> None:
    """With the clock in hand: beyond the window an operation could be decided twice, so it only waits."""
    exchange = PendingOperations("c1", resend_after_s_max=60, broker_clock=BrokerClock())
    pending = PendingOperation(
        op_id="a", what="x", key=b"", value=b"", future=Future(), first_sent_s=0, next_send_s=5, resend_after_s=5,
        deadline_s=1e9, parts={},
    )  # fmt: skip
    exchange.add(pending)
    sends = [second for second in range(3_600) if exchange.due(second)]
    assert sends[:5] == [5, 15, 35, 75, 135]
    assert RESEND_WINDOW_MS / 1000 - 60 <= sends[-1] < RESEND_WINDOW_MS / 1000


class SlowLink(MemoryLink):
    """A link that confirms nothing by itself."""

    def __init__(self) -> None:
        super().__init__(lambda _key, _value: ())
        self.unconfirmed: list[Callable[[Exception | None], None]] = []

    def send(self, key: bytes, value: bytes, on_sent: Callable[[Exception | None], None]) -> None:
        self.unconfirmed.append(on_sent)
        super().send(key, value, lambda _: None)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Transport, SlowLink]]:
    monkeypatch.setattr(transport_module, "SendWindow", lambda: SendWindow(records_max=3))
    link = SlowLink()
    with Transport(ClientSettings(bootstrap_servers="memory", client_id="c"), link=link) as transport:
        yield transport, link


@pytest.mark.parametrize("kind", ["submit", "post"])
def test_a_sender_waits_while_kafka_has_not_confirmed_what_was_sent(
    slow: tuple[Transport, SlowLink], kind: str
) -> None:
    transport, link = slow
    sender = threading.Thread(target=lambda: [getattr(transport, kind)(TICK) for _ in range(5)])
    sender.start()
    eventually(lambda: len(link.sent) == 3)
    sender.join(0.2)
    assert (sender.is_alive(), len(link.sent)) == (True, 3)
    link.unconfirmed[0](None)
    link.unconfirmed[0](None)
    eventually(lambda: len(link.sent) == 4)
    link.unconfirmed[1](OSError("refused"))
    sender.join(60)
    assert len(link.sent) == 5


def test_a_sender_does_not_wait_for_a_transport_that_is_closed(slow: tuple[Transport, SlowLink]) -> None:
    transport, link = slow
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: list(map(transport.post, [TICK] * 4)))
        eventually(lambda: len(link.sent) == 3)
        transport.close()
        with pytest.raises(ClientClosed, match="transport c is closed"):
            sending.result(60)
    assert len(link.sent) == 3


def test_who_posts_learns_that_there_was_no_room_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is not sent again: only the caller can do that. The history has it not, for it was never sent."""
    monkeypatch.setattr(transport_module, "SendWindow", lambda: SendWindow(records_max=1))
    link, history = SlowLink(), tmp_path / "history"
    settings = ClientSettings(
        bootstrap_servers="kafka:9092", client_id="c", delivery_timeout_ms=1, history_file=history
    )
    with Transport(settings, link=link) as transport:
        transport.post(TICK)
        with pytest.raises(Unavailable, match="Kafka has not confirmed what was sent before") as raised:
            transport.post(TICK)
        assert raised.value.subject == "kafka:9092"
        assert len(link.sent) == 1
        link.unconfirmed[0](None)
        transport.post(TICK)
    assert len(link.sent) == len([event for event in read_history(history) if isinstance(event, Invoke)]) == 2


def test_a_confirmation_never_waits_for_another_one() -> None:
    """An operation that is sent within it has failed, and is sent again later."""
    window = SendWindow(records_max=1)
    found: list[bool] = []
    confirm = window.enter(1, lambda _: found.append(window.wait_for_room(1, 60)))
    window.enter(1, lambda _: None)
    confirm(None)
    assert found == [False]


def test_a_post_that_is_too_large_is_refused() -> None:
    with transport_with(ops_bytes_max=10) as (transport, link):
        with pytest.raises(Invalid, match=r"^Tick takes \d+ bytes, more than the 10 allowed") as raised:
            transport.post(TICK)
        assert raised.value.subject == "orders/5"
        assert link.sent == []


def test_an_admin_key_signs_what_needs_it_once_and_the_same_bytes_are_sent_again() -> None:
    key = AdminKey("2030", "a secret of 24 characters")
    policy = Policy(v=1, topic="orders", queue_id=5, group="billing")
    with transport_with(admin_key=key, prefix="shop", resend_after_ms=1) as (transport, link):
        transport.submit(TICK)
        transport.submit(policy)
        transport.post(policy)
        eventually(lambda: len(link.sent) >= 5)
        sent = [value for _, value in link.sent]
    ticks = [value for value in sent if b'"tick"' in value]
    policies = [value for value in sent if b'"policy"' in value]
    assert all(b"signature" not in value for value in ticks)
    assert len(set(policies)) == 2
    verifier = OperationVerifier(KeyRing.of({"2030": key.secret.encode()}, "2030"), "shop.ops")
    for value in policies:
        assert verifier.key_of(decode(value).signature, value, int(time.time() * 1000)) == "2030"
