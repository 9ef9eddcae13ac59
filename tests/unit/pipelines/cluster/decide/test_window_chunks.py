"""The window of op_ids in chunks (window_chunks.py), beside a plain dict."""

from __future__ import annotations

import random

import pytest

from pipelines.cluster.decide import window_chunks
from pipelines.cluster.decide.window_chunks import OUT_OF_DATE_MS, WindowChunks, WindowIndex
from tests.support.in_process.memory_maps import SEED, MemoryMap


def opened(index: MemoryMap, values: MemoryMap, first: int = 1, end: int = 1) -> WindowChunks:
    stored = {int.from_bytes(key, "big"): WindowIndex.decode(value) for key, value in index.items()}
    return WindowChunks(index, values, SEED, first, end, stored)


@pytest.mark.parametrize("seed", range(30))
def test_chunks_hold_what_a_dict_holds_however_often_they_are_opened_anew(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(window_chunks, "CHUNK_BYTES", chance.choice([40, 200, 1_000]))
    index, values = MemoryMap(), MemoryMap()
    window, model, now_ms = opened(index, values), dict[bytes, bytes](), 0
    keys = [b"key %d" % number for number in range(40)]
    for _ in range(60):
        now_ms += chance.choice([1_000, 30_000, OUT_OF_DATE_MS // 3])
        changes = {
            key: None if chance.random() < 0.4 else b"%d" % chance.randrange(10**6)
            for key in chance.sample(keys, chance.randrange(12))
        }
        window.write(changes.items(), now_ms)
        model = {key: value for key, value in {**model, **changes}.items() if value is not None}
        if chance.random() < 0.2:
            window = opened(index, values, window.first, window.end)
        assert window.get_many(keys) == [model.get(key) for key in keys]
        assert [window.get(key) for key in keys] == [model.get(key) for key in keys]
        assert len(window) == len(model)
        assert len(index) == window.end - window.first


def test_what_is_new_costs_no_call_and_a_write_costs_two() -> None:
    index, values = MemoryMap(), MemoryMap()
    window = opened(index, values)
    for round_ in range(20):
        keys = [b"op %d of %d" % (number, round_) for number in range(500)]
        assert window.get_many(keys) == [None] * 500
        window.write([(key, b"answer") for key in keys], 0)
    assert (index.calls, values.calls) == (20, 20)


def test_a_queue_where_nothing_happens_any_more_keeps_no_old_chunks() -> None:
    index, values = MemoryMap(), MemoryMap()
    window = opened(index, values)
    window.write([(b"of an idle queue", b"kept"), (b"of a busy one", b"1")], 0)
    for minute in range(40):
        window.write([(b"of a busy one", b"%d" % minute)], minute * 60_000)
    assert window.get(b"of an idle queue") == b"kept"
    assert window.end - window.first < 15


def test_no_value_grows_with_the_deletes_of_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_chunks, "CHUNK_BYTES", 640)
    index, values = MemoryMap(), MemoryMap()
    keys = [b"%d" % number for number in range(500)]
    opened(index, values).write([(key, b"answer") for key in keys], 0)
    window = opened(index, values, 1, len(index) + 1)
    window.write([*((key, None) for key in keys[:400]), (b"new", b"answer")], 0)
    assert max(len(WindowIndex.decode(value).deleted) for _, value in index.items()) == 640
    again = opened(index, values, window.first, window.end)
    assert again.get_many([*keys, b"new"]) == [*[None] * 400, *[b"answer"] * 101]
