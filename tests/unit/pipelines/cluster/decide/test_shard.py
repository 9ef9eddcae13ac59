"""A shard (shard.py): what it decides, tells the ticker and quarantines; its calls to the state store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import PySparkRuntimeError

from pipelines.cluster.decide.shard import Shard, ShardMeta, ShardSettings
from pipelines.cluster.decide.shard_state import ShardMaps, quarantine_key, quarantined_in
from pipelines.cluster.decide.spark_maps import SparkMap, SparkValue
from pipelines.decide_ops import ops_decider
from pipelines.decide_ops.decode import KafkaRecord
from pipelines.decide_ops.entries import read_frame
from pipelines.decide_ops.entry import EntryKind
from popstream.exchange.partitioner import ops_key
from popstream.wire.base_errors import Unavailable
from tests.support.in_process.memory_maps import SEED, MemoryMap, memory_maps
from tests.support.in_process.small_job import DECLARE, POP, written_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SETTINGS = ShardSettings("run", 1, 1, None, SEED, 1 << 20)
NOW_MS = 1_700_000_000_000


def record(at: int, **fields: Any) -> KafkaRecord:
    full = {"v": 1, "topic": "t", "queue_id": 0, "reply_to": 0, "op_id": f"op-{at}", **fields}
    value = json.dumps(full).encode()
    return KafkaRecord(0, at, NOW_MS + at, ops_key("t", 0), value, len(value))


def declared(maps: ShardMaps) -> Shard:
    """A shard with one queue of 1,000 messages and one lane."""
    shard = Shard(SETTINGS, maps, ShardMeta())
    shard.apply([record(0, **DECLARE), record(1, **written_to(0, 999))])
    return shard


def pop(at: int) -> KafkaRecord:
    return record(at, **{**POP, "invisible_time_ms": 60_000, "poll_time_ms": 0})


def answers(entries: list[Any]) -> list[dict[str, Any]]:
    frames = [read_frame(entry.value)[1] for entry in entries if entry.kind == EntryKind.ANSWERS]
    return [answer for frame in frames for answer in json.loads(frame)["answers"]]


def test_records_that_are_applied_are_left_out() -> None:
    shard = declared(memory_maps())
    first = answers(shard.apply([pop(2), pop(3)]))
    assert [answer["code"] for answer in first] == [0, 0]
    again = answers(shard.apply([pop(2), pop(3), pop(4)]))
    assert [answer["op_id"] for answer in again] == ["op-4"]
    assert shard.meta.next_offset == 5


def test_the_ticker_learns_the_earliest_deadline_of_each_queue() -> None:
    maps = memory_maps()
    shard = declared(maps)
    assert shard.earliest_deadlines() == []
    shard.apply([pop(2)])
    (due,) = shard.earliest_deadlines()
    assert due == (NOW_MS + 2 + 60_000, "t", 0)
    assert Shard(SETTINGS, maps, shard.meta).earliest_deadlines() == [due]


def test_a_record_that_raises_is_quarantined_and_the_others_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = declared(memory_maps())
    fold = ops_decider.fold  # type: ignore[attr-defined]

    def poisoned(overlay: Any, records: Any, decision: Any) -> Any:
        if any(each.kafka_offset == 5 for each in records):
            message = "poison"
            raise RuntimeError(message)
        return fold(overlay, records, decision)

    monkeypatch.setattr(ops_decider, "fold", poisoned)
    entries = shard.apply([pop(at) for at in range(2, 9)])
    assert quarantined_in(shard._maps) == {5: "RuntimeError: poison"}
    assert shard.meta.next_offset == 9
    by_op = {answer["op_id"]: answer for answer in answers(entries)}
    assert by_op.keys() == {f"op-{at}" for at in range(2, 9)}
    assert by_op["op-5"]["detail"].startswith("QUARANTINED")
    monkeypatch.undo()
    assert answers(Shard(SETTINGS, shard._state._maps, shard.meta).apply([pop(9)]))[0]["code"] == 0


@pytest.mark.parametrize("error", [Unavailable("the state cannot be read"), MemoryError(), OSError("no space left")])
def test_an_error_that_no_record_has_caused_quarantines_nothing(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = declared(memory_maps())

    def unreadable(*_: object) -> None:
        raise error

    monkeypatch.setattr(ops_decider, "fold", unreadable)
    with pytest.raises(type(error)):
        shard.apply([pop(3), pop(4)])
    assert quarantined_in(shard._maps) == {}
    assert shard.meta.next_offset == 2


class Broken:
    """Spark's state whose client fails; of a map, also in the middle of an iteration."""

    def getValue(self, _: object) -> None:  # noqa: N802 - Spark's names
        raise PySparkRuntimeError("Error getting value: IOError")

    def updateValue(self, *_: object) -> None:  # noqa: N802
        raise EOFError

    def removeKey(self, _: object) -> None:  # noqa: N802
        raise ConnectionResetError

    def keys(self) -> Iterator[tuple[bytes]]:
        yield (b"key",)
        raise PySparkRuntimeError("Error reading keys")

    def iterator(self) -> Iterator[tuple[tuple[bytes], tuple[bytes]]]:
        yield (b"key",), (b"value",)
        raise PySparkRuntimeError("Error reading items")

    def get(self) -> None:
        raise PySparkRuntimeError("Error getting value")

    def update(self, _: object) -> None:
        raise PySparkRuntimeError("Error updating value")


def test_what_the_client_of_the_state_store_raises_is_an_error_of_the_store() -> None:
    stored, value = SparkMap(cast("Any", Broken()), "state"), SparkValue(cast("Any", Broken()), "meta")
    calls: list[Callable[[], object]] = [
        lambda: stored.get(b"key"),
        lambda: stored.put(b"key", b"value"),
        lambda: stored.remove(b"key"),
        lambda: list(stored.keys()),
        lambda: list(stored.items()),
        value.get,
        lambda: value.put(b"value"),
    ]
    for call in calls:
        with pytest.raises(Unavailable, match=r"Spark's state store cannot be used \((state|meta)\)"):
            call()


def test_a_value_that_cannot_be_read_quarantines_no_healthy_record() -> None:
    maps = memory_maps()
    meta = declared(maps).meta

    class Unreadable(MemoryMap):
        def get(self, key: bytes) -> bytes | None:
            return SparkMap(cast("Any", Broken()), "state").get(key)

    unreadable = Unreadable()
    for key, stored in maps.state.items():
        unreadable.put(key, stored)
    shard = Shard(SETTINGS, maps._replace(state=unreadable), meta)
    with pytest.raises(Unavailable, match="Spark's state store cannot be used"):
        shard.apply([pop(2), pop(3)])
    assert shard.meta == meta


def test_a_record_that_a_snapshot_has_in_quarantine_is_not_decided() -> None:
    maps = memory_maps()
    meta = declared(maps).meta
    for at in (1, 3):
        maps.quarantined.put(quarantine_key(at), b"RuntimeError: poison")
    shard = Shard(SETTINGS, maps, meta)
    by_op = {answer["op_id"]: answer["code"] for answer in answers(shard.apply([pop(2), pop(3), pop(4)]))}
    assert [op_id for op_id, code in by_op.items() if code] == ["op-3"]
    assert quarantined_in(maps) == dict.fromkeys((1, 3), "RuntimeError: poison")
    assert len(shard.meta.encode()) < 100, "it is written with each micro-batch"


def test_a_warm_shard_makes_few_calls() -> None:
    maps = memory_maps()
    shard = declared(maps)
    shard.apply([pop(at) for at in range(2, 502)])
    before = calls(maps)
    shard.apply([pop(at) for at in range(502, 1_002)])
    # The pages of 64 offsets are half of them.
    assert calls(maps) - before <= 20


def calls(maps: ShardMaps) -> int:
    return sum(each.calls for each in maps if isinstance(each, MemoryMap))
