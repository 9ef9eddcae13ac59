"""Which shards a worker keeps in memory (kept_shards.py)."""

from __future__ import annotations

import gc
import weakref

import pytest

from pipelines.cluster.decide.kept_shards import KeptShards
from pipelines.cluster.decide.shard import Shard, ShardMeta
from tests.support.in_process.memory_maps import memory_maps
from tests.unit.pipelines.cluster.decide.test_shard import SETTINGS

META = ShardMeta(next_offset=7)


def new_shard() -> Shard:
    return Shard(SETTINGS, memory_maps(), META)


def test_a_shard_is_used_again_while_its_memory_agrees_with_the_state() -> None:
    kept = KeptShards()
    assert kept.get(("run", 1), META) is None
    shard = kept.load(("run", 1), 4, new_shard)
    assert kept.get(("run", 1), META) is shard
    assert kept.get(("run", 1), ShardMeta(next_offset=8)) is None
    assert len(kept) == 0


def test_shards_that_are_no_longer_used_are_dropped() -> None:
    kept = KeptShards()
    for partition in range(5):
        kept.load(("run", partition), 4, new_shard)
        kept.get(("run", 0), META)
    assert len(kept) == 4
    assert [partition for partition in range(5) if kept.get(("run", partition), META)] == [0, 2, 3, 4]
    kept.load(("next", 0), 4, new_shard)
    assert len(kept) == 1, "those of a query that has ended are gone"
    kept.drop(("next", 0))
    assert len(kept) == 0


def test_a_shard_without_records_for_minutes_is_dropped_when_another_one_has_some() -> None:
    now_s = 0.0
    kept = KeptShards(lambda: now_s)
    for partition in range(3):
        kept.load(("run", partition), 40, new_shard)
    for _ in range(4):
        now_s += 100.0
        assert kept.get(("run", 2), META) is not None
    assert len(kept) == 1


@pytest.mark.parametrize("is_full", [False, True])
def test_the_memory_of_a_shard_is_free_before_the_one_in_its_place_is_loaded(*, is_full: bool) -> None:
    kept = KeptShards()
    old = weakref.ref(kept.load(("run", 0), 1, new_shard))
    place = ("run", 1) if is_full else ("run", 0)
    assert kept.get(place, ShardMeta(next_offset=8)) is None

    def load() -> Shard:
        assert old() is None
        return new_shard()

    gc.disable()
    try:
        kept.load(place, 1, load)
    finally:
        gc.enable()
