"""Claim: step 1 gives the order of the log, once for each record; partitions take turns and keep their order."""

import random

from pipelines.decide_ops.decode import KafkaRecord
from pipelines.decide_ops.order import TURN_RECORDS_MAX, TurnLength, in_turns, order

NEXT_OFFSET = {0: 3, 1: 0}


def record(partition: int, kafka_offset: int) -> KafkaRecord:
    return KafkaRecord(partition, kafka_offset, 1_000, b"key", b"value", 5)


def places(records: list[KafkaRecord]) -> list[tuple[int, int]]:
    return [(each.partition, each.kafka_offset) for each in records]


def test_records_are_sorted_by_partition_and_offset_and_applied_ones_are_dropped() -> None:
    records = [record(p, at) for p in range(2) for at in range(10)]
    random.Random(4).shuffle(records)
    assert places(order(records, NEXT_OFFSET)) == [(0, at) for at in range(3, 10)] + [(1, at) for at in range(10)]


def test_a_partition_without_applied_offset_is_read_from_its_start() -> None:
    assert places(order([record(1, 0)], {})) == [(1, 0)]


def test_partitions_take_turns_and_keep_their_order() -> None:
    """What one partition has no records for is left to the others."""
    records = [record(0, at) for at in range(10)] + [record(1, at) for at in range(3)] + [record(3, 0)]
    assert [places(turn) for turn in in_turns(records, TurnLength(6))] == [
        [(0, 0), (0, 1), (1, 0), (1, 1), (3, 0)],
        [(0, 2), (0, 3), (0, 4), (1, 2)],
        [(0, at) for at in range(5, 10)],
    ]
    assert list(in_turns([], TurnLength(4))) == []


def test_each_partition_has_a_record_in_a_turn() -> None:
    records = [record(p, at) for p in range(5) for at in range(2)]
    assert [places(turn) for turn in in_turns(records, TurnLength(1))] == [[(p, at) for p in range(5)] for at in (0, 1)]


def test_the_length_of_a_turn_may_change_between_two_turns() -> None:
    length = TurnLength(4)
    turns = in_turns([record(0, at) for at in range(12)], length)
    counts = [len(next(turns))]
    length.took(1.0)
    counts.append(len(next(turns)))
    for _ in range(20):
        length.took(0.0)
    counts += [len(turn) for turn in turns]
    assert counts == [4, 2, 6]
    assert length.records == TURN_RECORDS_MAX
    for _ in range(20):
        length.took(1.0)
    assert length.records == 1
