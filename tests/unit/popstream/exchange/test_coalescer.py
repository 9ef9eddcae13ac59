"""Claim: items of a queue leave together, as exact ranges, in order. Method: many callers, an emitter that fails."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popstream.exchange.coalescer import Coalescer, ranges_of


@given(st.lists(st.integers(0, 60)))
def test_ranges_cover_exactly_the_offsets(offsets: list[int]) -> None:
    ranges = ranges_of(offsets)
    assert [offset for first, last in ranges for offset in range(first, last + 1)] == sorted(set(offsets))
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(ranges))


def test_what_comes_within_the_delay_leaves_together() -> None:
    emitted: list[tuple[str, list[int]]] = []
    coalescer = Coalescer[str, int](
        "t", delay_ms=80, items_max=100, emit=lambda *call: emitted.append(call), failed=lambda *_: None
    )
    for item in range(5):
        coalescer.add([("a", item), ("b", -item)])
    assert emitted == []
    time.sleep(0.3)
    assert emitted == [("a", [0, 1, 2, 3, 4]), ("b", [0, -1, -2, -3, -4])]
    coalescer.close()


def test_a_full_coalescer_does_not_wait() -> None:
    full = threading.Event()
    coalescer = Coalescer[str, int](
        "t", delay_ms=60_000, items_max=10, emit=lambda *_: full.set(), failed=lambda *_: None
    )
    coalescer.add(("a", item) for item in range(10))
    assert full.wait(60)
    coalescer.close()


def test_close_emits_what_waits_and_refuses_more() -> None:
    emitted: list[tuple[str, list[int]]] = []
    coalescer = Coalescer[str, int](
        "t", delay_ms=60_000, items_max=10, emit=lambda *call: emitted.append(call), failed=lambda *_: None
    )
    coalescer.add([("a", 1)])
    coalescer.close()
    assert emitted == [("a", [1])]
    with pytest.raises(RuntimeError):
        coalescer.add([("a", 2)])


def test_an_emitter_that_raises_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    emitted: list[str] = []
    failed: list[list[int]] = []

    def emit(key: str, _items: list[int]) -> None:
        if key == "bad":
            message = "no"
            raise ValueError(message)
        emitted.append(key)

    coalescer = Coalescer[str, int](
        "t", delay_ms=1, items_max=10, emit=emit, failed=lambda items, _error: failed.append(items)
    )
    coalescer.add([("bad", 1), ("good", 2)])
    coalescer.flush()
    coalescer.add([("good", 3)])
    coalescer.close()
    assert emitted == ["good", "good"]
    assert failed == [[1]]
    assert "could not be emitted" in caplog.text


def test_nothing_is_lost_or_doubled_with_many_callers() -> None:
    emitted: list[int] = []
    coalescer = Coalescer[str, int](
        "t", delay_ms=1, items_max=7, emit=lambda _key, items: emitted.extend(items), failed=lambda *_: None
    )

    def add(start: int) -> None:
        for item in range(start, start + 500):
            coalescer.add([("a", item)])

    threads = [threading.Thread(target=add, args=(start,)) for start in range(0, 4_000, 1_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    coalescer.close()
    assert sorted(emitted) == [item for start in range(0, 4_000, 1_000) for item in range(start, start + 500)]
    assert [item for item in emitted if item < 1_000] == list(range(500))


def test_close_waits_no_longer_than_told_and_the_rest_follows() -> None:
    is_free, emitted = threading.Event(), []

    def emit(key: str, items: list[int]) -> None:
        is_free.wait(60)
        emitted.append((key, items))

    slow: Coalescer[str, int] = Coalescer("slow", delay_ms=0, items_max=1, emit=emit, failed=lambda *_: None)
    slow.add([("a", 1)])
    slow.close(timeout_s=0.01)
    assert emitted == []
    is_free.set()
    slow.close()
    assert emitted == [("a", [1])]
