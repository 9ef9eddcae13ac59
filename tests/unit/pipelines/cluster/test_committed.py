"""A log that no longer has what comes after the state of a cluster (committed.py)."""

from __future__ import annotations

import pytest

from checkpoints.reconcile import LogFound
from pipelines.cluster.committed import Committed
from popstream.wire.base_errors import Corrupt


def log(first: dict[int, int], end: dict[int, int]) -> LogFound:
    return LogFound(topic="p.ops", topic_id="id", first_offset=first, end_offset=end)


def test_a_log_that_goes_on_where_the_state_ends_is_accepted() -> None:
    Committed(4, {0: 7, 1: 0}).require_log(log({0: 7, 1: 0}, {0: 7, 1: 9}))


def test_a_state_that_begins_takes_the_log_as_it_is() -> None:
    Committed(-1, {}).require_log(log({0: 7, 1: 3}, {0: 7, 1: 9}))


def test_a_log_without_its_end_is_refused() -> None:
    with pytest.raises(Corrupt, match=r"has lost its end, .* begin a new checkpoint with tables of its own") as lost:
        Committed(4, {0: 7, 1: 3}).require_log(log({0: 0, 1: 0}, {0: 6, 1: 9}))
    assert lost.value.details == ("partition 0 ends at 6, but is decided up to 7",)


def test_a_log_without_records_that_are_not_decided_is_refused() -> None:
    with pytest.raises(Corrupt, match=r"lost records before they were decided: .* `--take-over`") as lost:
        Committed(4, {0: 7, 1: 3}).require_log(log({0: 0, 1: 4}, {0: 7, 1: 9}))
    assert lost.value.details == ("partition 1 starts at 4, but is decided only up to 3",)
