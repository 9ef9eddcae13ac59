"""A micro-batch that begins above what its shard has decided (skipped_records.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from pipelines.cluster.decide import skipped_records
from pipelines.cluster.decide.skipped_records import require_no_records_between
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

KAFKA = KafkaConnection("kafka:9092")


class Record(NamedTuple):
    offset: int


class Reader:
    """In place of the one of Kafka: a log with records at 3, 4 and 9."""

    def __init__(self, _: KafkaConnection, topic: str, partition: int) -> None:
        assert (topic, partition) == ("p.ops", 2)

    def between(self, first_offset: int, end_offset: int) -> Iterator[Record]:
        return (Record(at) for at in (3, 4, 9) if first_offset <= at < end_offset)

    def close(self) -> None:
        """Nothing is open."""


def test_records_that_a_micro_batch_leaves_out_are_an_error_and_holes_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(skipped_records, "OpsPartitionReader", Reader)
    for decided, begin in ((5, 9), (9, 9), (4, 2)):
        require_no_records_between(KAFKA, "p.ops", 2, decided, begin)
    with pytest.raises(Corrupt, match="begins above what its shard has decided, which is up to 4: the record at 4"):
        require_no_records_between(KAFKA, "p.ops", 2, 4, 9)
