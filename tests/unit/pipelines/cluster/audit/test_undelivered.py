"""What the audit topic holds and the tables may lack (undelivered.py). Method: without Kafka and Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from checkpoints.reconcile import LogFound
from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster.audit import undelivered
from pipelines.cluster.audit.undelivered import read_undelivered, require_delivered
from pipelines.cluster.audit.unit_entries import UnitsKey
from pipelines.cluster.checkpoint_identity import FORMAT, CheckpointIdentity
from pipelines.cluster.decide.extent import START, Cursors, Extent
from pipelines.cluster.decide.outgoing import EntryKey
from pipelines.cluster.decide.shard import LETTERS
from pipelines.decide_ops.entry import EntryKind, LogPlace
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "p.cluster_audit"
IDENTITY = CheckpointIdentity(
    format=FORMAT, prefix="p", state_epoch="e", seed=1, ops_topic_id="T", ops_partitions=1, audit_from={0: 0}
)
NO_SPARK, KAFKA = cast("Any", None), KafkaConnection("kafka:9092")
UNREADABLE = b"no value that a count has to read, or to keep"


def extent(begin: int, end: int) -> Extent:
    return Extent(START, LogPlace(begin, 0), LogPlace(end, 0))


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """The entries of the audit topic."""
    found: list[tuple[bytes, bytes]] = []

    class Reader:
        def __init__(self, *_: object) -> None:
            """Read the only partition."""

        def between(self, begin: int, end: int) -> Iterator[Any]:
            return (SimpleNamespace(key=key, value=value) for key, value in found[begin:end])

        def close(self) -> None:
            """Nothing is open."""

    def log(*_: object) -> LogFound:
        return LogFound(topic=TOPIC, topic_id="A", first_offset={0: 0}, end_offset={0: len(found)})

    monkeypatch.setattr(undelivered, "OpsPartitionReader", Reader)
    monkeypatch.setattr(undelivered, "read_log_bounds", log)
    monkeypatch.setattr(undelivered, "describe", lambda *_: {TOPIC: TopicFacts(TOPIC, "A", 1)})
    monkeypatch.setattr(undelivered, "last_committed", lambda *_: None)
    monkeypatch.setattr(undelivered, "stored_cursors", lambda *_: Cursors({}))
    return found


def test_a_state_all_of_whose_entries_are_delivered_goes_on_elsewhere(entries: list[tuple[bytes, bytes]]) -> None:
    entries.append((EntryKey("of another state", 0, 0, extent(0, 2), EntryKind.AUDIT).encode(), UNREADABLE))
    require_delivered(NO_SPARK, KAFKA, "/state", IDENTITY)


def test_entries_are_counted_once_and_their_values_not_read(entries: list[tuple[bytes, bytes]]) -> None:
    rows = EntryKey("e", 0, 0, extent(0, 2), EntryKind.AUDIT).encode()
    letter = EntryKey("e", 0, LETTERS, extent(0, 2), EntryKind.DEAD_LETTER).encode()
    units = UnitsKey("e", "orders", 0, extent(0, 2)).encode()
    entries += [(key, UNREADABLE) for key in (rows, letter, units, rows)]
    with pytest.raises(Invalid, match=r"^3 entries of p\.cluster_audit are not in the tables"):
        require_delivered(NO_SPARK, KAFKA, "/state", IDENTITY)


def test_a_verification_gets_the_rows_and_the_number_of_letters(entries: list[tuple[bytes, bytes]]) -> None:
    later = EntryKey("e", 0, 0, Extent(LogPlace(5, 0), LogPlace(5, 0), LogPlace(7, 0)), EntryKind.AUDIT).encode()
    entries += [
        (EntryKey("e", 0, LETTERS, extent(0, 2), EntryKind.DEAD_LETTER).encode(), b""),
        (EntryKey("e", 0, 0, extent(0, 2), EntryKind.AUDIT).encode(), b"rows"),
        (later, b"rows after a gap"),
    ]
    found = read_undelivered(NO_SPARK, KAFKA, "/state", IDENTITY)
    assert [value for _, _, value in found.rows] == [b"rows", b"rows after a gap"]
    assert (found.units, found.dead_letters) == ([], 1)
