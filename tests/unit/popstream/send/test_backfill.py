"""Claim: a topic that is dispatched afterwards is dispatched as if its records had been when they were written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from popstream.send import backfill
from popstream.send.backfill import _label, dispatch_records
from popstream.settings import ClientSettings
from popstream.topics.message_topics import MessageTopic, TopicReader
from popstream.wire.base_errors import Invalid, Unavailable
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


@pytest.mark.parametrize(
    ("ends", "leaderless", "written_end", "error"),
    [
        ({}, [], 0, Invalid),  # made again, with fewer partitions
        ({0: 5}, [], 5, Invalid),  # made again, or shortened
        ({0: 5}, [], 12, Unavailable),  # behind a transaction that is open
        ({}, [0], 0, Unavailable),
    ],
)
def test_records_that_are_gone_are_told_from_those_that_are_not_committed_yet(
    monkeypatch: pytest.MonkeyPatch,
    ends: dict[int, int],
    leaderless: list[int],
    written_end: int,
    error: type[Exception],
) -> None:
    topic = MessageTopic("orders", "id", dict.fromkeys(ends, 0), ends, frozenset(leaderless))
    monkeypatch.setattr(backfill, "COMMITTED_S_MAX", 0.01)
    monkeypatch.setattr(backfill, "describe_topic", lambda *_: topic)
    monkeypatch.setattr(TopicReader, "written_end", lambda *_: written_end)
    transport: Any = None
    with pytest.raises(error, match="orders/0") as raised:
        dispatch_records(
            ClientSettings(bootstrap_servers="kafka:9092", client_id="c"), transport, "orders", 0, [(8, 9)]
        )
    assert type(raised.value) is error
