"""When a worker looks for cyclic garbage (rare_collection.py)."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from pipelines.cluster.decide import rare_collection
from pipelines.cluster.decide.rare_collection import RareCollection

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_a_decision_is_not_disturbed_and_what_it_keeps_is_not_gone_through_after_it() -> None:
    collection = RareCollection()
    with collection.decision():
        assert not gc.isenabled()
        kept = [Cycle() for _ in range(100)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(kept)
    assert not any(isinstance(each, Cycle) for each in gc.get_objects())


def test_cycles_are_freed_after_a_number_of_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rare_collection, "DECISIONS_MAX", 3)
    collection = RareCollection()
    with collection.decision():
        gone = weakref.ref(Cycle())
    with collection.decision():
        assert gone() is not None
    with collection.decision():
        pass
    assert gone() is None


def test_a_decision_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(RuntimeError), RareCollection().decision():
        raise RuntimeError
    assert gc.isenabled()
