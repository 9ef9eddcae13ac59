"""Claim: a topic that is dispatched afterwards is dispatched as if its records had been when they were written."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from popstream.errors import Refused
from popstream.send import backfill
from popstream.send.backfill import _label, declare_queue, dispatch_records
from popstream.settings import ClientSettings
from popstream.topics.message_topics import MessageTopic, TopicReader
from popstream.wire.answer import Answer
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import Declare
from popstream.wire.reason import Reason, code_of
from popstream.wire.tag import tag_hash


@pytest.mark.parametrize(
    ("headers", "label"),
    [
        (None, (0, 1, 0)),
        (
            [("popstream-tag", b"paid"), ("popstream-deliver-at", b"1790000000000")],
            (tag_hash("paid"), 1, 1790000000000),
        ),
        ([("popstream-deliver-at", b"tomorrow")], (0, 1, 0)),
        (
            [("popstream-batch-count", b"3"), ("popstream-batch-bytes", b"5"), ("popstream-deliver-at", b"9")],
            (0, 3, 9),
        ),
    ],
)
def test_the_label_of_a_record_is_in_its_headers(
    headers: list[tuple[str, bytes]] | None, label: tuple[int, int, int]
) -> None:
    assert _label(SimpleNamespace(headers=headers, value=b"value")) == label


def dispatch(monkeypatch: pytest.MonkeyPatch, topic: MessageTopic | None, written_end: int = 0) -> None:
    """Dispatch offset 9 of a queue of which Kafka says this. There is no job: who asks it raises AttributeError."""
    transport: Any = None
    monkeypatch.setattr(backfill, "COMMITTED_S_MAX", 0.01)
    monkeypatch.setattr(TopicReader, "read", lambda *_: {} if topic is None else {"orders": topic})
    monkeypatch.setattr(TopicReader, "written_end", lambda *_: written_end)
    dispatch_records(ClientSettings(bootstrap_servers="kafka:9092", client_id="c"), transport, "orders", 0, [(9, 9)])


@pytest.mark.parametrize(
    ("topic", "written_end"),
    [
        pytest.param(None, 0, id="deleted"),
        pytest.param(MessageTopic("orders", "id", {}, {}), 0, id="made again with fewer partitions"),
        pytest.param(MessageTopic("orders", "id", {0: 0}, {0: 5}), 5, id="made again or shortened"),
    ],
)
def test_records_that_are_gone_are_not_dispatched_and_keep_nothing_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, topic: MessageTopic | None, written_end: int
) -> None:
    dispatch(monkeypatch, topic, written_end)
    assert "orders/0 has no offset 9 any more" in caplog.text


def answer(reason: Reason) -> Answer:
    return Answer(
        op_id="1",
        type="declare",
        code=code_of(reason),
        reason=reason,
        applied=False,
        topic="orders",
        queue_id=0,
        now_ms=1,
    )


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (Reason.OK, None),
        (Reason.INVALID_PARAMETER, None),  # it is declared as a queue of batches
        (Reason.NO_PERMISSION, Refused),
    ],
)
def test_a_queue_is_declared_as_kafka_describes_it_unless_the_job_refuses(
    monkeypatch: pytest.MonkeyPatch, reason: Reason, error: type[Exception] | None
) -> None:
    asked: list[Declare] = []

    def request(command: Declare) -> Answer:
        asked.append(command)
        return answer(reason)

    transport: Any = SimpleNamespace(request=request)
    monkeypatch.setattr(TopicReader, "read", lambda *_: {"orders": MessageTopic("orders", "id", {0: 4}, {0: 5})})
    settings = ClientSettings(bootstrap_servers="kafka:9092", client_id="c")
    with nullcontext() if error is None else pytest.raises(error):
        declare_queue(settings, transport, "orders", 0)
    assert asked == [Declare(v=1, topic="orders", queue_id=0, topic_id="id", min_offset=4)]
    with pytest.raises(Invalid, match="topic orders has no partition 1"):
        declare_queue(settings, transport, "orders", 1)


@pytest.mark.parametrize(
    ("topic", "written_end"),
    [
        pytest.param(MessageTopic("orders", "id", {0: 0}, {0: 5}), 12, id="behind an open transaction"),
        pytest.param(MessageTopic("orders", "id", {}, {}, frozenset([0])), 0, id="without a leader"),
    ],
)
def test_records_that_are_not_committed_yet_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, topic: MessageTopic, written_end: int
) -> None:
    with pytest.raises(Unavailable, match="orders/0 is not committed up to offset 9"):
        dispatch(monkeypatch, topic, written_end)
