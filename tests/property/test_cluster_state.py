"""Claim: over the maps of a cluster's state a log leads to the answers, rows and state that it leads to on a disk.

Method: the generated logs of test_cuts.py are decided over a shard's state in micro-batches of random lengths, and what
the shard has in memory is forgotten at random, as after the loss of an executor. Chunks are short, so that they fill.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pipelines.cluster.decide import window_chunks
from tests.property.test_cuts import RECORDS, SEEDS, differences, reference
from tests.support.in_process.folding import Folding, random_cuts, records_of
from tests.support.in_process.memory_maps import ShardStore


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("chunk_bytes", [500, window_chunks.CHUNK_BYTES])
def test_a_shard_decides_as_a_store_on_disk(seed: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_chunks, "CHUNK_BYTES", chunk_bytes)
    records = records_of(seed, RECORDS)
    chance = random.Random(seed)
    store = ShardStore(records[0].timestamp_ms)
    folding = Folding(store)
    for first, end in pairwise((0, *random_cuts(records, seed), len(records))):
        store.newest_ms = max(record.timestamp_ms for record in records[first:end])
        folding.decide(records[first:end])
        if chance.random() < 0.5:
            store.reload()
    wanted, wanted_folded = reference(seed)
    assert differences(wanted, store.families()) == []
    assert folding.folded.digest() == wanted_folded.digest()
