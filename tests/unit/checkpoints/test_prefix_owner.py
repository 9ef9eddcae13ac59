"""Claim: only a job that continues the owner's state takes a prefix by itself, and none takes it from a live owner.

Method: each row of the table in checkpoints/prefix_owner.py, and the sentences that operators read.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from checkpoints.prefix_owner import Contender, Owner, Take, when_to_take
from popstream.wire.base_errors import Invalid

OWNER = Owner(
    session="s",
    term=3,
    state_epoch="e1",
    has_decided=True,
    ops_topic_id="t",
    place="p",
    host="blue",
    pid=7,
    folder="/data/job",
)


def contender(*epochs: str, **other: Any) -> Contender:
    return Contender(**{"state_epochs": epochs, "ops_topic_id": "t", "place": "elsewhere", **other})


def owner(**other: Any) -> Owner:
    return msgspec.structs.replace(OWNER, **other)


@pytest.mark.parametrize(
    ("found", "wants", "when"),
    [
        pytest.param(None, contender(), Take.NOW, id="a new prefix"),
        pytest.param(None, contender("e1"), Take.NOW, id="a folder from before there were owners"),
        pytest.param(owner(), contender("e1", place="p"), Take.NOW, id="a restart after a kill"),
        pytest.param(owner(ended=True), contender("e1"), Take.NOW, id="a moved folder"),
        pytest.param(owner(), contender("e1"), Take.AFTER_SILENCE, id="a copied or moved folder"),
        pytest.param(owner(), contender("e2", "e1", place="p"), Take.NOW, id="a restore in place"),
        pytest.param(owner(ended=True), contender("e2", "e1"), Take.NOW, id="a restore elsewhere"),
        pytest.param(owner(), contender("e2", "e1"), Take.AFTER_SILENCE, id="a restore elsewhere after a kill"),
        pytest.param(owner(state_epoch="", ended=True), contender(), Take.NOW, id="nothing decided"),
        pytest.param(owner(state_epoch=""), contender("e9"), Take.AFTER_SILENCE, id="nothing decided, may run"),
        pytest.param(owner(has_decided=False), contender(place="p"), Take.NOW, id="killed before it decided"),
        pytest.param(owner(has_decided=False), contender("e1"), Take.AFTER_SILENCE, id="back to the state before"),
        pytest.param(owner(ended=True), contender(ops_topic_id="u"), Take.NOW, id="another ops topic"),
        pytest.param(owner(), contender(ops_topic_id="u"), Take.AFTER_SILENCE, id="another ops topic, may run"),
        pytest.param(owner(), contender(take_over=True), Take.AND_WAIT, id="taken over, empty"),
        pytest.param(owner(), contender("e9", take_over=True), Take.AND_WAIT, id="taken over, another state"),
        pytest.param(owner(), contender("e1", take_over=True), Take.AND_WAIT, id="taken over, the same state"),
        pytest.param(owner(ended=True), contender(take_over=True), Take.NOW, id="taken over after the end"),
        pytest.param(owner(), contender(place="p", take_over=True), Take.NOW, id="taken over in place"),
    ],
)
def test_it_may_take_the_prefix(found: Owner | None, wants: Contender, when: Take) -> None:
    assert when_to_take("shop", found, wants) is when


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("place", ["p", "elsewhere"])
@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        pytest.param((), "the state of the prefix shop is elsewhere, and this folder has none", id="empty folder"),
        pytest.param(("e9",), "the prefix shop belongs to another state than that of this folder", id="another state"),
        pytest.param(("e0",), "the prefix shop belongs to another state than that of this folder", id="an older state"),
    ],
)
def test_another_state_is_refused_with_the_owner_and_the_way_out(
    epochs: tuple[str, ...], said: str, place: str, *, ended: bool
) -> None:
    """Also if the owner has ended: its state is the one that the log has led to."""
    with pytest.raises(Invalid, match=said) as caught:
        when_to_take("shop", owner(ended=ended), contender(*epochs, place=place))
    assert "process 7 on blue, folder /data/job, since 1970-01-01T00:00:00Z" in caught.value.message
    assert all(way in caught.value.message for way in ("`popstream restore`", "`popstream up --take-over`"))
