"""Claim: a worker keeps the ids of queues while they are of use to it, and no longer (kept_ids.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from broker_state.consume_queue import Accepted
from pipelines.build_units.accepted_ids import IdCounts, MemoryIds
from pipelines.cluster.queues import kept_ids
from pipelines.cluster.queues.kept_ids import IDLE_S_MAX, KeptIds
from pipelines.cluster.queues.queue_shard import QueueMeta

if TYPE_CHECKING:
    from collections.abc import Callable

META = QueueMeta()
OTHER = msgspec.structs.replace(META, end=7)


def ids(count: int) -> MemoryIds:
    return MemoryIds({bytes([at]): Accepted(at, 0, at + 1) for at in range(count)}, IdCounts(count, 0))


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def kept(now: list[float]) -> KeptIds:
    found = KeptIds(clock=lambda: now[0])
    assert found.take("run", "t/0", META) is None
    found.keep("t/0", META, ids(3))
    return found


def test_they_are_taken_once(kept: KeptIds) -> None:
    found = kept.take("run", "t/0", META)
    assert found is not None
    assert len(found) == 3
    assert kept.take("run", "t/0", META) is None


def others(kept: KeptIds, now: list[float]) -> None:  # noqa: ARG001 - one of several
    assert kept.take("run", "t/0", OTHER) is None


def another_run(kept: KeptIds, now: list[float]) -> None:  # noqa: ARG001
    assert kept.take("later", "t/1", META) is None


def idle(kept: KeptIds, now: list[float]) -> None:
    now[0] = IDLE_S_MAX + 1
    kept.keep("t/1", META, None)


@pytest.mark.parametrize("end", [others, another_run, idle])
def test_what_is_of_no_use_any_more_is_dropped(
    kept: KeptIds, now: list[float], end: Callable[[KeptIds, list[float]], None]
) -> None:
    assert len(kept) == 3
    end(kept, now)
    assert len(kept) == 0


def test_the_queue_that_came_last_stays_however_many_ids_it_has(kept: KeptIds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_ids, "IDS_MAX", 5)
    kept.keep("t/1", META, ids(2))
    assert len(kept) == 5
    kept.keep("t/2", META, ids(9))
    assert len(kept) == 9
    assert kept.take("run", "t/2", META) is not None
