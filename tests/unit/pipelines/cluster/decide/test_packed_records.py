"""Claim: records of a micro-batch come to a shard in bounded parts, which follow from the records alone."""

from __future__ import annotations

import random
import tracemalloc

import pyarrow as pa
import pytest

from pipelines.cluster.decide import packed_records
from pipelines.cluster.decide.packed_records import Payload, bounded_slices, pack
from pipelines.decide_ops.decode import KafkaRecord

TYPES = (pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary(), pa.int32(), pa.string())


def batches_of(records: list[KafkaRecord], rows_max: int) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(values, kind) for values, kind in zip(zip(*part, strict=True), TYPES, strict=True)],
            names=KafkaRecord._fields,
        )
        for at in range(0, len(records), rows_max)
        if (part := records[at : at + rows_max])
    ]


def payloads_of(packed: list[pa.RecordBatch]) -> dict[int, list[Payload]]:
    found: dict[int, list[Payload]] = {}
    for batch in packed:
        for partition, first, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            found.setdefault(partition, []).append(Payload(first, data))
    return found


def log(chance: random.Random, count: int, partitions: int = 3, size_max: int = 900) -> list[KafkaRecord]:
    records = []
    for at in range(count):
        value = chance.choice([None, b"", chance.randbytes(chance.randrange(size_max))])
        is_over = chance.random() < 0.05
        records.append(
            KafkaRecord(
                chance.randrange(partitions),
                at,
                1_000 + at,
                chance.choice([None, b"key"]),
                value,
                9_000_000 if is_over else len(value or b""),
                "hash" if is_over else None,
            )
        )
    return records


@pytest.mark.parametrize("rows_max", [1, 50, 10_000])
def test_a_shard_gets_its_records_in_slices_that_do_not_depend_on_how_they_were_packed(
    rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_records, "UNPACKED_BYTES_MAX", 20_000)
    monkeypatch.setattr(packed_records, "PAYLOAD_BYTES_MAX", 3_000)
    chance = random.Random(5)
    records = log(chance, 400)
    found = payloads_of([*pack(batches_of(records, rows_max))])
    whole = payloads_of([*pack(batches_of(records, 400))])
    for partition in range(3):
        payloads = found[partition]
        chance.shuffle(payloads)
        slices = list(bounded_slices(partition, payloads))
        assert slices == list(bounded_slices(partition, whole[partition]))
        assert [each for part in slices for each in part] == [each for each in records if each.partition == partition]
        assert len(slices) > 1
        assert all(sum(256 + len(each.value or b"") for each in part) <= 20_000 for part in slices)


def test_a_record_beyond_the_bounds_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_records, "UNPACKED_BYTES_MAX", 1_000)
    monkeypatch.setattr(packed_records, "PAYLOAD_BYTES_MAX", 1_000)
    records = [KafkaRecord(0, at, 1, None, b"x" * size, size) for at, size in enumerate([10, 5_000, 10, 10])]
    (payloads,) = payloads_of([*pack(batches_of(records, 10))]).values()
    assert [payload.first_offset for payload in payloads] == [0, 1, 2]
    assert [[each.kafka_offset for each in part] for part in bounded_slices(0, payloads)] == [[0], [1], [2, 3]]


def test_what_follows_from_the_rest_is_not_packed() -> None:
    value = b'{"v":1}'
    plain = [KafkaRecord(3, at, 1_000 + at, b"key", [value, None][at % 2], [7, 0][at % 2]) for at in range(8)]
    over = [*plain[:-1], plain[-1]._replace(value=value, value_bytes=5_000_000, value_sha256="hash")]
    for records, columns in ((plain, 4), (over, 6)):
        (payload,) = payloads_of([*pack(batches_of(records, 10))])[3]
        assert len(pa.ipc.open_stream(payload.data).schema) == columns
        assert [*bounded_slices(3, [payload])] == [records]


def test_no_rows_are_no_payloads() -> None:
    empty = pa.RecordBatch.from_arrays([pa.array([], kind) for kind in TYPES], names=KafkaRecord._fields)
    assert [batch.num_rows for batch in pack([empty])] == [0]
    assert list(bounded_slices(0, [])) == []


def test_of_a_large_micro_batch_one_slice_is_unpacked_at_a_time() -> None:
    value = b'{"h":0,"o":[[1,1]]},' * 2_000
    records = [KafkaRecord(0, at, 1, b"key", value, len(value)) for at in range(1_500)]
    (payloads,) = payloads_of([*pack(batches_of(records, 500))]).values()
    del records
    tracemalloc.start()
    count = sum(len(part) for part in bounded_slices(0, payloads))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 1_500
    assert peak_bytes < 5 * packed_records.UNPACKED_BYTES_MAX < len(value) * count / 2
