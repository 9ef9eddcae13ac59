"""Claim: a micro-batch is one synced WriteBatch, written whole or not at all; after a failed one the store stops.

Method: rocksdict's own class is wrapped, so that every write is seen; MicroBatchApplier runs over the real store with
lists of records in Spark's place.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from rocksdict import Rdict, WriteOptions

from broker_state.store import rocks_store
from broker_state.store.keys import DEADLINE_PAGE, DEADLINE_PARKED, DeadlineRef, queue_prefix
from broker_state.store.overlay import DEADLINES, OPS, STATE, Overlay
from broker_state.store.rocks_store import FAMILIES, META, OUTBOX, DiskFailed, RocksStore, StoreStopped
from checkpoints.applied import APPLIED_KEY, Applied
from connectors.delta.tables import AUDIT_TABLES
from pipelines.apply_ops.delta_flush import DeltaFlush
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops.entry import EntryKind
from pipelines.loops.retry_loop import RetryLoop
from popstream.wire.base_errors import RESTORE, Corrupt, Invalid, PopstreamError
from tests.support.in_process.small_job import DECLARE, POP, SmallJob, written_to
from tests.support.left_behind import damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOPIC = "popstream.ops"
READS = {"get", "iter", "get_column_family", "get_column_family_handle", "latest_sequence_number", "close"}


class Disk:
    """Replaces `Rdict`: counts writes, can refuse them, and has no other method that changes data."""

    writes: list[int]
    broken: bool
    error: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._db = Rdict(*args, **kwargs)

    def write(self, batch: Any, options: WriteOptions | None = None) -> None:
        assert options is not None, "a write without options is not synced"
        assert options.sync, "a write that is not synced can be lost after it was answered"
        if Disk.broken:
            raise OSError(Disk.error)
        Disk.writes.append(batch.size_in_bytes())
        self._db.write(batch, options)

    def __getattr__(self, name: str) -> Any:
        assert name in READS, f"Rdict.{name} is not how this store is read or written"
        found = getattr(self._db, name)
        return (lambda family: _ReadOnly(found(family))) if name == "get_column_family" else found


class _ReadOnly:
    """A column family that cannot be written past the WriteBatch."""

    def __init__(self, family: Rdict) -> None:
        self._family = family

    def __getattr__(self, name: str) -> Any:
        assert name in READS, f"Rdict.{name} goes past the WriteBatch"
        return getattr(self._family, name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> type[Disk]:
    monkeypatch.setattr(rocks_store, "Rdict", Disk)
    Disk.writes, Disk.broken, Disk.error = [], False, "IO error: No space left on device"
    return Disk


class Text:
    """A value that is its own stored form."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def encode(self) -> bytes:
        return self.value


def written(overlay: Overlay, **values: bytes) -> Overlay:
    for key, value in values.items():
        overlay.put(key.encode(), Text(value))
    return overlay


def all_of(store: RocksStore) -> dict[str, dict[bytes, bytes]]:
    return {family: dict(store.scan(family, b"")) for family in FAMILIES}


def test_everything_that_must_agree_is_in_one_synced_write(tmp_path: Path, disk: type[Disk]) -> None:
    with RocksStore(tmp_path) as store:
        overlay = written(Overlay(store), a=b"1", b=b"2")
        overlay.set_bits(b"bits", 0b101)
        overlay.set_op(b"op", b"answer")
        overlay.set_deadline(queue_prefix("t", 0), 1, DEADLINE_PAGE, 2, 0, 7)
        size = store.write(overlay, [(META, b"applied", b"x"), (OUTBOX, b"entry", b"y")])
        assert disk.writes == [size]
        assert store.write_batches_written == 1
        assert {family: len(values) for family, values in all_of(store).items()} == {
            STATE: 3,
            OPS: 1,
            DEADLINES: 1,
            OUTBOX: 1,
            META: 1,
        }


def test_reopening_reads_what_was_written(tmp_path: Path) -> None:
    with RocksStore(tmp_path) as store:
        store.write(written(Overlay(store), a=b"1", b=b"2"), [(META, b"m", b"3")])
        overlay = Overlay(store)
        overlay.delete(b"a")
        store.write(overlay)
        before = all_of(store)
    with RocksStore(tmp_path) as store:
        assert all_of(store) == before
        assert store.get(STATE, b"a") is None
        assert store.get_many(STATE, [b"b", b"a"]) == [b"2", None]
        assert store.get_many(STATE, []) == []
    with RocksStore(tmp_path, read_only=True) as store:
        assert all_of(store) == before


def test_erasures_come_before_puts(tmp_path: Path) -> None:
    """In one micro-batch a lane is deleted and made again: the new values stay, and the old ones are deleted."""
    with RocksStore(tmp_path) as store:
        store.write(written(Overlay(store), lane1=b"old", lane2=b"old", lanf=b"neighbour", lan=b"neighbour"))
        overlay = written(Overlay(store), lane3=b"lost")
        overlay.erase(b"la", (b"ne",))
        assert overlay.get(b"lane1", Text) is None
        written(overlay, lane1=b"new")
        store.write(overlay)
        assert dict(store.scan(STATE, b"")) == {b"lan": b"neighbour", b"lane1": b"new", b"lanf": b"neighbour"}


def test_erasing_a_prefix_of_ff_bytes_ends_where_it_should(tmp_path: Path) -> None:
    with RocksStore(tmp_path) as store:
        overlay = Overlay(store)
        for key in (b"a\xff", b"a\xff\x01", b"b"):
            overlay.put(key, Text(b"x"))
        store.write(overlay)
        overlay = Overlay(store)
        overlay.erase(b"a", (b"\xff",))
        store.write(overlay)
        assert dict(store.scan(STATE, b"")) == {b"b": b"x"}


def test_a_failed_write_stops_the_store_for_good(tmp_path: Path, disk: type[Disk]) -> None:
    with RocksStore(tmp_path) as store:
        store.write(written(Overlay(store), a=b"1"))
        overlay = written(Overlay(store), b=b"2")
        disk.broken = True
        with pytest.raises(StoreStopped, match="No space left"):
            store.write(overlay)
        disk.broken = False
        with pytest.raises(StoreStopped, match="No space left"):
            store.write(overlay)
        assert len(disk.writes) == store.write_batches_written == 1
    with RocksStore(tmp_path) as store:
        assert dict(store.scan(STATE, b"")) == {b"a": b"1"}


def test_deadlines_of_a_queue_come_in_order_and_of_no_other(tmp_path: Path) -> None:
    """Also of the queue whose name sorts next to it, past the limit, and with the largest of numbers."""
    queue, other = queue_prefix("t", 1), queue_prefix("t", 2)
    refs = [
        DeadlineRef(5, 2, DEADLINE_PARKED, 1),
        DeadlineRef(5, 1, DEADLINE_PAGE, 2**57),
        DeadlineRef(1_790_000_000_000, 1, DEADLINE_PAGE, 0),
        DeadlineRef(9, 2**32 - 1, DEADLINE_PARKED, 2**64 - 1),
    ]
    with RocksStore(tmp_path) as store:
        overlay = Overlay(store)
        for ref in refs:
            overlay.set_deadline(queue, ref.lane_no, ref.kind, ref.number, 0, ref.deadline_ms)
        overlay.set_deadline(other, 1, DEADLINE_PAGE, 1, 0, 1)
        store.write(overlay)
        ordered = sorted(refs)
        assert store.deadlines(queue, None, 2**62, 100) == ordered
        assert store.deadlines(queue, None, 2**62, 2) == ordered[:2]
        assert store.deadlines(queue, ordered[1], 2**62, 100) == ordered[2:]
        assert store.deadlines(queue, None, 5, 100) == ordered[:2]
        assert store.deadlines(queue_prefix("t", 3), None, 2**62, 100) == []


# ------------------------------------------------------------------------------------------- the job over it


def test_each_micro_batch_is_one_write_with_everything_in_it(tmp_path: Path, disk: type[Disk]) -> None:
    """Declares, parked pops, messages that serve them, rejected records: still one write per micro-batch."""
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        batches: list[list[dict[str, Any]]] = [
            [DECLARE, POP],
            [written_to(0, 9), POP, {"type": "nonsense"}],
            [POP, {"type": "tick"}, POP],
        ]
        for number, batch in enumerate(batches, 1):
            job.run(*batch)
            assert len(disk.writes) == store.write_batches_written == number
            assert job.apply_ops.applied.apply_seq == number
            stored = store.get(META, APPLIED_KEY)
            assert stored is not None
            assert Applied.decode(stored) == job.apply_ops.applied
            assert job.reports[-1].write_batch_bytes == disk.writes[-1]
        assert {entry.apply_seq for entry in job.published} == {1, 2, 3}
        assert dict(store.scan(OUTBOX, b"")) == {entry.key: entry.value for entry in job.published}


def test_an_empty_planned_range_still_moves_the_position(tmp_path: Path, disk: type[Disk]) -> None:
    """A micro-batch of control records: one write passes them."""
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE)
        job.run(planned_end=5)
        assert job.apply_ops.applied.next_offset == {0: 5}
        job.run(planned_end=5)
        assert len(disk.writes) == 2


def test_what_is_applied_is_not_decided_again(tmp_path: Path, disk: type[Disk]) -> None:
    """Spark repeats a micro-batch, whole or joined with the next: decided records are dropped, nothing is written."""
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE, written_to(0, 9))
        before = all_of(store)
        published = len(job.published)
        job.run_records(job.records.batch, 2)
        assert len(disk.writes) == 1
        assert all_of(store) == before
        assert len(job.published) == published


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("IO error: No space left on device: While appending to file: /state/000012.sst", StoreStopped),
        ("IO error: While lock file: /state/LOCK: Resource temporarily unavailable", Invalid),
        ("Corruption: checksum mismatch", Corrupt),
        ("IO error: No such file or directory: While opening a file: /state/MANIFEST-000004", Corrupt),
        ("IO error: No such file or directory: While opening a file: /state/CURRENT", Invalid),
    ],
)
def test_only_room_may_come_by_itself_for_a_store_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, kind: type[PopstreamError]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Exception(said)  # noqa: TRY002 - as rocksdict does

    monkeypatch.setattr(rocks_store, "Rdict", refuse)
    with pytest.raises(kind, match=said):
        RocksStore(tmp_path)


def test_a_failed_write_ends_the_job_and_nothing_is_published(tmp_path: Path, disk: type[Disk]) -> None:
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE)
        before, applied, published = all_of(store), job.apply_ops.applied, list(job.published)
        disk.broken = True
        with pytest.raises(StoreStopped):
            job.run(written_to(0, 9))
        disk.broken = False
        with pytest.raises(StoreStopped):
            job.run(written_to(0, 9))
        assert job.published == published
        assert job.apply_ops.applied == applied
        assert all_of(store) == before
    with RocksStore(tmp_path / "state") as store:
        again = SmallJob(tmp_path, store)
        again.run(written_to(0, 9))
        assert b'"commit_position":10' in again.published[0].value


def test_delivered_entries_leave_with_the_next_write(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE)
        size = job.outbox.undelivered_bytes
        job.outbox.delivered([entry.key for entry in job.published])
        assert size > 0
        assert (job.outbox.undelivered_bytes, len(job.outbox)) == (0, 0)
        assert len(list(store.scan(OUTBOX, b""))) == len(job.published)
        job.run(written_to(0, 9))
        assert {key[1:9] for key, _ in store.scan(OUTBOX, b"")} == {(2).to_bytes(8, "big")}
        assert len(Outbox(store)) == len(job.outbox)


class Tables:
    """In place of `AuditFlusher`: all tables have the commits of a killed predecessor."""

    def __init__(self, delivered: int) -> None:
        self._delivered = delivered
        self.spans: list[tuple[str, int, list[int]]] = []

    def delivered(self, _: str) -> int:
        return self._delivered

    def flush(self, table: str, slices: Iterable[tuple[int, bytes]], upto: int) -> int:
        self.spans.append((table, upto, [seq for seq, _ in slices]))
        return 0


def test_a_table_without_rows_is_no_lag(tmp_path: Path) -> None:
    """It has no commit, so nothing says up to where it is whole but that nothing waits."""
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE)
        job.run(written_to(0, 9))
        applied = job.apply_ops.applied.apply_seq

        def delivered_seq() -> int:
            return DeltaFlush(job.outbox, Tables(delivered=-1), applied_seq=lambda: applied).delivered_seq

        first, *others = list(job.outbox.undelivered(EntryKind.AUDIT))
        assert delivered_seq() == first.apply_seq - 1 == 0
        job.outbox.delivered([entry.key for entry in (first, *others)])
        assert delivered_seq() == applied == 2


def test_rows_that_a_killed_flush_had_committed_leave_the_outbox(tmp_path: Path) -> None:
    """Killed between the commit and the note of it: these rows are not delivered again, so they must not stay."""
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE)
        job.run(written_to(0, 9))
    with RocksStore(tmp_path / "state") as store:
        again = SmallJob(tmp_path, store)
        tables = Tables(delivered=1)
        failures: list[BaseException] = []
        flush = DeltaFlush(again.outbox, tables, applied_seq=lambda: again.apply_ops.applied.apply_seq)
        loop = RetryLoop("flush", 60, flush.flush, failures.append, problem_prefix="no Delta")
        loop.start()
        loop.stop()
        assert not failures
        assert {upto for _, upto, _ in tables.spans} == {2}
        assert {seq for _, _, seqs in tables.spans for seq in seqs} == {2}
        assert [table for table, _, _ in tables.spans] == list(AUDIT_TABLES)
        assert list(again.outbox.undelivered(EntryKind.AUDIT)) == []
        again.run(POP)
        audit = [key for key, _ in store.scan(OUTBOX, b"") if key[0] == EntryKind.AUDIT]
        assert {key[1:9] for key in audit} == {(3).to_bytes(8, "big")}


def test_a_damaged_file_is_told_and_never_an_end(tmp_path: Path) -> None:
    """An iterator of RocksDB that meets damage ends like one without further keys."""
    with RocksStore(tmp_path / "state") as store:
        store.write_changes([(STATE, b"%06d" % number, number.to_bytes(400)) for number in range(5_000)])
        store.copy_to(tmp_path / "copy")  # flushes
    table = max((tmp_path / "copy").glob("*.sst"), key=lambda file: file.stat().st_size)
    damage(table, table.stat().st_size // 2)
    keys = [b"%06d" % number for number in range(5_000)]
    with RocksStore(tmp_path / "copy", read_only=True) as store:
        with pytest.raises(Corrupt, match="run `popstream restore`"):
            list(store.scan(STATE, b""))
        with pytest.raises(Corrupt, match="cannot be read"):
            store.get_many(STATE, keys)
        with pytest.raises(Corrupt, match="cannot be read"):
            [store.get(STATE, key) for key in keys]
        with pytest.raises(Corrupt, match="cannot be read"):
            store.frozen().get_many(STATE, keys)


def fail(error: str) -> Callable[..., None]:
    def raise_it(*_: object) -> None:
        raise Exception(error)  # noqa: TRY002 - as rocksdict

    return raise_it


UNREADABLE = "IO error: Input/output error: While pread offset 0 len 4096: /state/000009.sst"


def test_a_read_that_fails_is_no_fault_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start tries the disk again, and knows the file for damaged then; no record is quarantined."""
    errors = []
    for _ in range(8):
        with RocksStore(tmp_path / "state") as store, monkeypatch.context() as broken:
            job = SmallJob(tmp_path, store)
            broken.setattr(store, "_families", dict.fromkeys(FAMILIES, SimpleNamespace(get=fail(UNREADABLE))))
            with pytest.raises(PopstreamError, match="the state cannot be read: IO error") as caught:
                job.run(DECLARE, written_to(0, 3))
            errors.append(caught.value)
    assert [type(error) for error in errors] == [DiskFailed, *[Corrupt] * 7]
    assert str(errors[0]) == f"the state cannot be read: {UNREADABLE}\n  if it fails again, {RESTORE}"
    assert errors[1].message == f"the state cannot be read: {UNREADABLE}: the disk has failed there twice: {RESTORE}"
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE, written_to(0, 3))
        assert len(job.quarantine) == 0
        assert job.apply_ops.applied.apply_seq == 1


def test_an_io_error_is_damage_only_where_the_disk_failed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may fail for a moment, and in one opening for each read of a file."""

    def error_of(said: str, path: Path, *, times: int = 1) -> type[BaseException]:
        with RocksStore(path) as store, monkeypatch.context() as broken:
            broken.setattr(store, "_families", {STATE: SimpleNamespace(get=fail(said))})
            for _ in range(times):
                with pytest.raises(PopstreamError) as caught:
                    store.get(STATE, b"key")
        return type(caught.value)

    now_s = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    assert error_of(UNREADABLE, tmp_path / "state", times=3) is DiskFailed
    now_s[0] += 3_600
    assert error_of(UNREADABLE, tmp_path / "state") is DiskFailed, "weeks later, of a disk at the end of a network"
    assert error_of(UNREADABLE.replace("000009", "000011"), tmp_path / "state") is DiskFailed
    assert error_of(UNREADABLE, tmp_path / "queues") is DiskFailed, "another store"
    assert error_of(UNREADABLE.replace("Input/output error", "No space left on device"), tmp_path / "state") is (
        StoreStopped
    )
    assert error_of(UNREADABLE, tmp_path / "state") is Corrupt


def test_a_write_that_fails_is_damage_unless_one_succeeded_since(tmp_path: Path, disk: type[Disk]) -> None:
    """Each opening writes to a new file, and what has failed once in a network may never fail again."""

    def error_of_a_write() -> type[BaseException]:
        with RocksStore(tmp_path / "state") as store:
            disk.broken = True
            with pytest.raises(PopstreamError) as caught:
                store.write_changes([(STATE, b"key", b"value")])
            disk.broken = False
        return type(caught.value)

    disk.error = "IO error: Input/output error: While appending to file: /state/000012.log"
    assert error_of_a_write() is DiskFailed
    with RocksStore(tmp_path / "state") as store:
        store.write_changes([(STATE, b"key", b"value")])
    assert error_of_a_write() is DiskFailed
    assert error_of_a_write() is Corrupt
