"""Appending to a queue: what is taken, what is refused; and stored bytes are checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broker_state.consume_queue import (
    BLOCK,
    BLOCK_OFFSETS,
    FILTER,
    ConsumeQueue,
    ContradictionError,
    Place,
    Unit,
    Units,
    unit_at_or_after,
    units_from,
    units_with_key,
)
from broker_state.store.value_format import CorruptValueError
from popstream.wire.base_errors import Corrupt
from popstream.wire.command import QueueType
from tests.unit.broker_state.consume_queue.queue_lab import QueueLab, unit


def test_a_stretch_that_was_not_scanned_is_not_passed_over() -> None:
    lab = QueueLab("simple")
    lab.scan([unit(0)], 10)
    with pytest.raises(ValueError, match="scanned to 10"):
        lab.scan([unit(12)], 13, first_offset=11)


def test_appending_again_changes_nothing() -> None:
    lab = QueueLab("batch", anchor=9)
    units = [unit(at, inner_count=1 + at % 4) for at in range(0, 5_000, 3)]
    lab.scan(units, 5_000)
    queue, values = lab.queue, dict(lab.values)
    for first, end in ((0, 5_000), (10, 20), (1_024, 2_048), (4_999, 5_000), (700, 700)):
        lab.scan([each for each in units if first <= each.queue_offset < end], end, first_offset=first)
        assert (lab.queue, lab.values) == (queue, values)


def test_a_log_that_says_something_else_is_refused_and_changes_nothing() -> None:
    lab = QueueLab("simple")
    lab.scan([unit(at) for at in range(2_000)], 2_000)
    queue, values = lab.queue, dict(lab.values)
    for other in ([], [unit(1_500, size_bytes=1)], [unit(1_500, key_hash=4)]):
        with pytest.raises(ContradictionError, match=r"1500\.\.1500") as raised:
            lab.scan(other, 1_501, first_offset=1_500)
        assert (raised.value.first_offset, raised.value.end_offset) == (1_500, 1_501)
    assert (lab.queue, lab.values) == (queue, values)


@pytest.mark.parametrize(
    ("queue_type", "units"),
    [
        ("simple", [unit(3), unit(3)]),
        ("simple", [unit(4), unit(3)]),
        ("simple", [unit(50)]),
        ("simple", [unit(3, size_bytes=-1)]),
        ("simple", [unit(3, inner_count=2)]),
        ("sparse", [unit(3, message_base=2)]),
        ("batch", [unit(3, inner_count=0)]),
        ("batch", [unit(3, inner_count=2, is_readable=False)]),
        ("batch", [unit(3, message_base=0, inner_count=5), unit(4, message_base=4)]),
        ("batch", [unit(3, message_base=-1)]),
    ],
)
def test_units_that_a_queue_cannot_have(queue_type: QueueType, units: list[Unit]) -> None:
    lab = QueueLab(queue_type)
    with pytest.raises(ValueError, match=r"unit|messages"):
        lab.append(units, 10)


def test_columns_of_other_types_are_refused() -> None:
    units = Units.of([unit(0), unit(1)])
    for wrong in (
        {"size_bytes": units.size_bytes.astype(np.int32)},
        {"tag_hash": units.tag_hash.astype(np.int64)},
        {"store_time_ms": units.store_time_ms[:1]},
        {"more_key_hashes": np.ones(1, np.uint64)},
    ):
        with pytest.raises(ValueError, match="columns"):
            QueueLab("simple").append(replace(units, **wrong))


def test_what_left_the_log_is_left_out() -> None:
    lab = QueueLab("batch", 100, 50)
    lab.scan([unit(at, inner_count=2) for at in range(90, 110)], 110, first_offset=90)
    assert (lab.queue.unit_count, lab.queue.end_message_base) == (10, 70)
    lab.scan([unit(at) for at in range(10)], 10, first_offset=0)
    assert (lab.queue.unit_count, lab.queue.end_message_base) == (10, 70)


def test_a_filter_goes_with_its_last_key() -> None:
    lab = QueueLab("simple")
    lab.scan([unit(0), unit(1, key_hash=7)], 2)
    assert Place(FILTER, 0) in lab.values
    lab.truncate(1)
    assert Place(FILTER, 0) not in lab.values
    assert list(units_with_key(lab.queue, lab.get, 7)) == []


def test_damaged_values_are_refused() -> None:
    lab = QueueLab("simple")
    lab.scan([unit(at, key_hash=9) for at in range(2_000)], 2_000)
    for place in list(lab.values):
        for damaged in (b"", lab.values[place][:-1], b"\x07" + lab.values[place][1:]):
            whole, lab.values[place] = lab.values[place], damaged
            with pytest.raises(CorruptValueError):
                list(units_with_key(lab.queue, lab.get, 9))
            lab.values[place] = whole
    for record in (b"", b"\x02", b"\x01\x90"):
        with pytest.raises(CorruptValueError):
            ConsumeQueue.decode(record)


def test_a_block_that_its_page_knows_and_is_gone() -> None:
    lab = QueueLab("simple")
    lab.scan([unit(at) for at in range(2 * BLOCK_OFFSETS)], 2 * BLOCK_OFFSETS)
    del lab.values[Place(BLOCK, 1)]
    with pytest.raises(Corrupt, match="rebuild"):
        list(units_from(lab.queue, lab.get, 0))


def test_a_unit_whose_headers_are_malformed() -> None:
    lab = QueueLab("batch")
    units = [unit(0, inner_count=10, message_base=0), unit(1, is_readable=False, message_base=10)]
    lab.scan(units, 2)
    assert unit_at_or_after(lab.queue, lab.get, 1) == units[1]
    assert lab.queue.end_message_base == 11
