"""Claim: step 2 gives the order of the log, once for each record, and refuses a plan that would skip records."""

import random

from broker_state.kernel.context.decision import OpRecord
from pipelines.decide_ops.decode import Decoder, KafkaRecord, Rejected
from pipelines.decide_ops.order import Ordered, TurnLength, in_one_turn, in_turns, order
from popstream.exchange.partitioner import ops_key
from popstream.wire.command import Tick, encode_command

TICK = encode_command(Tick(v=1, topic="orders", queue_id=0))
NEXT_OFFSET = {0: 3, 1: 0}


def decoded(partition: int, kafka_offset: int, value: bytes) -> OpRecord | Rejected:
    return Decoder(2).decode(KafkaRecord(partition, kafka_offset, 1_000, ops_key("orders", 0), value, len(value)))


def test_records_are_sorted_by_partition_and_offset_and_applied_ones_are_dropped() -> None:
    records = [decoded(p, at, TICK if at % 3 else b"no command") for p in range(2) for at in range(10)]
    random.Random(4).shuffle(records)
    ordered = order(records, NEXT_OFFSET)
    operations = [(record.partition, record.kafka_offset) for record in ordered.operations]
    rejected = [(each.row.partition, each.row.kafka_offset) for each in ordered.rejected]
    assert operations == [(0, at) for at in (4, 5, 7, 8)] + [(1, at) for at in (1, 2, 4, 5, 7, 8)]
    assert rejected == [(0, at) for at in (3, 6, 9)] + [(1, at) for at in (0, 3, 6, 9)]


def test_a_partition_without_applied_offset_is_read_from_its_start() -> None:
    assert len(order([decoded(1, 0, TICK)], {}).operations) == 1


def test_one_turn_holds_all_records_and_ends_after_the_last_one_of_either_kind() -> None:
    records = [decoded(0, at, TICK) for at in range(3)] + [decoded(0, 3, b"no command"), decoded(1, 7, b"no command")]
    turn = in_one_turn(order(records, {}))
    assert (len(turn.operations), len(turn.rejected), turn.ends) == (3, 2, {0: 4, 1: 8})


def test_partitions_take_turns_and_keep_their_order() -> None:
    records = [decoded(0, at, TICK if at % 4 else b"no command") for at in range(10)]
    records += [decoded(1, at, TICK) for at in range(3)] + [decoded(3, 0, b"no command")]
    turns = list(in_turns(order(records, {}), TurnLength(4)))
    assert [turn.ends for turn in turns] == [{0: 4, 1: 3, 3: 1}, {0: 8}, {0: 10}]
    assert [[at.kafka_offset for at in turn.operations if at.partition == 0] for turn in turns] == [
        [1, 2, 3],
        [5, 6, 7],
        [9],
    ]
    assert [[each.row[:2] for each in turn.rejected] for turn in turns] == [[(0, 0), (3, 0)], [(0, 4)], [(0, 8)]]
    assert list(in_turns(Ordered([], []), TurnLength(4))) == []


def test_the_length_of_a_turn_may_change_between_two_turns() -> None:
    length = TurnLength(4)
    turns = in_turns(order([decoded(0, at, TICK) for at in range(12)], {}), length)
    counts = [len(next(turns).operations)]
    length.took(1.0)
    counts.append(len(next(turns).operations))
    for _ in range(20):
        length.took(0.0)
    counts += [len(turn.operations) for turn in turns]
    assert counts == [4, 2, 6]
    for _ in range(20):
        length.took(1.0)
    assert length.records == 1
