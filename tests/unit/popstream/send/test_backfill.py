"""Claim: a topic that is dispatched afterwards is dispatched as if its records had been when they were written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from popstream.send.backfill import _label
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
