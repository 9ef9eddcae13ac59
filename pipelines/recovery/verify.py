"""`popstream verify`: decides the log again, in a scratch store, and compares the results with state and tables.

```
base (an empty state, or a snapshot) ── records of the log ──> recomputed state  ==  the state, byte for byte
                                                          └──> recomputed rows   ==  the rows in Delta
```
"""

import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.overlay import DEADLINES, OPS, STATE, Overlay
from broker_state.store.rocks_store import RocksStore
from checkpoints.applied import Applied, applied_of
from checkpoints.reconcile import LogFound, lost_records, require_same_log
from checkpoints.replay import Replay, replay_of
from checkpoints.snapshots import SnapshotStore
from connectors.delta.covered import Covered, covered_offsets, whole_versions
from connectors.delta.rows import decode_rows, encode_rows
from connectors.delta.tables import AUDIT_TABLES
from pipelines.apply_ops.decode import Decoder, KafkaRecord, Rejected
from pipelines.apply_ops.micro_batch import PIPELINE
from pipelines.apply_ops.outbox import EntryKind, Outbox
from pipelines.apply_ops.outbox_entries import read_slice, rows_by_table
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.recovery.ops_log import read_records
from popstream.wire.base_errors import Corrupt, Invalid
from popstream.wire.handle import Signer

__all__ = ["Verified", "verify"]

NEWEST = "newest"
_CHUNK_RECORDS = 50_000
"""Records decided at a time; each chunk takes one Spark query per table, of a second at least."""

_DIFFERENCES_SHOWN = 3
KERNEL_FAMILIES = (STATE, OPS, DEADLINES)


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison.

    Attributes:
        base: The state before the first record: an empty state, or a snapshot.
        records: Number of records decided again.
        keys: Number of keys of the state that are equal, byte for byte.
        rows: Number of equal rows, by table.
        not_in_delta: Number of rows that are still in the outbox, by table.
        differences: The first differences of each kind; empty if everything is equal.
    """

    base: str
    records: int
    keys: int
    rows: dict[str, int]
    not_in_delta: dict[str, int]
    differences: list[str]


def verify(
    state: Path,
    log: LogFound,
    bootstrap_servers: str,
    spark: SparkSession,
    delta: Path,
    snapshots: SnapshotStore,
    scratch: Path,
    signer: Signer | None,
    since: str | None = None,
) -> Verified:
    """Decide the log again, up to the applied offsets of `state`, and compare.

    Args:
        state: A state that is not written: of a stopped job, or of a snapshot.
        log: The ops topic.
        bootstrap_servers: Its Kafka.
        spark: A session with Delta.
        delta: Folder of the audit tables.
        snapshots: Snapshots to begin with, if the log has lost its first records.
        scratch: A folder that is created and removed.
        signer: The signer of the job, by which forged handles are recognised.
        since: Id of the snapshot to begin with, or `newest`, the newest one before the state. By default the start of
            the log, or the oldest snapshot after which the log is complete.

    Raises:
        Corrupt: The log is not the one that was decided, or is complete after no snapshot.
        Invalid: The log is not complete after the snapshot `since`.
    """
    try:
        with RocksStore(state, read_only=True) as store:
            applied = applied_of(store)
            require_same_log(applied, log)
            quarantine = Quarantine(store)
            epoch = applied.state_epoch
            versions = {name: whole_versions(delta, name, PIPELINE).get(epoch, -1) for name in AUDIT_TABLES}
            waiting = _waiting_rows(store, versions)
            replay = replay_of(store)
            base, base_name = _base(applied, log, snapshots, scratch, since, replay.since_loss)
            tables = _covered_tables(spark, delta, log, applied, replay)
            with RocksStore(scratch / "state") as again:
                records = read_records(bootstrap_servers, log.topic, base, applied.next_offset)
                decider = _Decider(again, Decoder(len(log.end_offset), signer), quarantine, tables)
                count = 0
                while chunk := list(islice(records, _CHUNK_RECORDS)):
                    decider.decide(chunk)
                    count += len(chunk)
                keys, differences = _compare(store, again)
        differences += _row_differences(tables, base, decider.fresh_rows, waiting)
        return Verified(
            base=base_name,
            records=count,
            keys=keys,
            rows={name: covered.verified_rows for name, covered in tables.items()},
            not_in_delta=decider.fresh_rows,
            differences=[*differences, *decider.differences],
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _covered_tables(
    spark: SparkSession, delta: Path, log: LogFound, applied: Applied, replay: Replay
) -> dict[str, Covered]:
    tables: dict[str, Covered] = {}
    for name, ends in covered_offsets(spark, delta, log.topic_id).items():
        # A running job continues to write: rows after the state are not compared.
        capped = {partition: min(end, applied.next_offset.get(partition, 0)) for partition, end in ends.items()}
        tables[name] = Covered(spark, delta, name, log.topic_id, capped, replay.compared_from.get(name))
    return tables


def _row_differences(
    tables: Mapping[str, Covered], base: Mapping[int, int], fresh_rows: Mapping[str, int], waiting: Mapping[str, int]
) -> list[str]:
    """Compare the row counts: of the tables, recomputed and found, recomputed and not found, and in the outbox."""
    differences = []
    for name, covered in tables.items():
        if (count := covered.rows_from(base)) != covered.verified_rows:
            differences.append(
                f"{name} has {count} rows, of which {covered.verified_rows} equal the rows recomputed from the log"
            )
        # Fewer than in the outbox is right: a running job may have delivered some after its state was copied.
        if (lost := fresh_rows.get(name, 0) - waiting.get(name, 0)) > 0:
            differences.append(f"{lost} rows of {name} are neither in Delta nor in the outbox")
    return differences


class _Decider:
    """Decides records in a store of its own, and compares the audit rows with those in Delta."""

    def __init__(
        self,
        store: RocksStore,
        decoder: Decoder,
        quarantine: Quarantine,
        tables: Mapping[str, Covered],
    ) -> None:
        self._store = store
        self._overlay = Overlay(store)
        self._decoder = decoder
        self._quarantine = quarantine
        self._tables = tables
        self.fresh_rows: dict[str, int] = {}
        self.differences: list[str] = []

    def decide(self, records: list[KafkaRecord]) -> None:
        decision = Decision()
        rejected: list[Rejected] = []
        operations: list[OpRecord] = []
        for record in records:
            command = self._quarantine.decode(record, self._decoder)
            if isinstance(command, Rejected):
                rejected.append(command)
            else:
                operations.append(command)
        fold(self._overlay, operations, decision)
        self._store.write(self._overlay)
        for name, rows in rows_by_table(decision, rejected).items():
            if not rows:
                continue
            covered = self._tables[name]
            table = decode_rows(name, encode_rows(name, rows))
            known, fresh = covered.split(table)
            self.fresh_rows[name] = self.fresh_rows.get(name, 0) + fresh.num_rows
            if known.num_rows:
                try:
                    covered.verify(known)
                except Corrupt as error:
                    self.differences += error.details


def _base(
    applied: Applied,
    log: LogFound,
    snapshots: SnapshotStore,
    scratch: Path,
    since: str | None,
    since_loss: list[str],
) -> tuple[dict[int, int], str]:
    """Return the offsets to begin at and the name of the base; a snapshot's state is copied to `scratch`."""
    empty: dict[int, int] = dict.fromkeys(log.end_offset, 0)
    if since is None and not since_loss and not lost_records(empty, log):
        return empty, "an empty state"
    newest_first = [snapshot for snapshot in snapshots.list() if since in {None, NEWEST, snapshot.id}]
    for snapshot in newest_first if since is not None else reversed(newest_first):
        found = snapshot.applied
        if since == NEWEST and found.next_offset == applied.next_offset:
            continue  # there are no records between it and the state
        is_before = all(offset <= applied.next_offset.get(p, 0) for p, offset in found.next_offset.items())
        is_ours = found.state_epoch in (since_loss or {applied.state_epoch, *applied.former_epochs})
        if found.ops_topic_id == log.topic_id and is_before and is_ours and not lost_records(found.next_offset, log):
            try:
                snapshots.fetch(snapshot, scratch)
            except Corrupt:
                # A running job may have deleted it in the meantime, the oldest one first.
                if since is not None or any(snapshot.id == kept.id for kept in snapshots.list()):
                    raise
                shutil.rmtree(scratch, ignore_errors=True)
                continue
            return {**empty, **found.next_offset}, f"snapshot {snapshot.id}"
    if since is not None:
        message = (
            f"the log is not complete after a snapshot `{since}` of this state: `popstream snapshot --list` lists them"
        )
        raise Invalid(message, subject=since)
    message = (
        f"{log.topic} does not reach back to its start or to any snapshot of this state, so the state cannot be"
        " verified; it may be correct. Run `popstream snapshot` now, to be able to verify from there on"
    )
    raise Corrupt(message, subject=log.topic)


def _waiting_rows(store: RocksStore, versions: Mapping[str, int]) -> dict[str, int]:
    """Count the rows that are only in the outbox, by table. Entries that are in Delta may still be there, too."""
    waiting: dict[str, int] = {}
    for entry in Outbox(store).undelivered(EntryKind.AUDIT):
        name, data = read_slice(entry.value)
        if entry.apply_seq <= versions[name]:
            continue
        waiting[name] = waiting.get(name, 0) + decode_rows(name, [data]).num_rows
    return waiting


def _compare(store: RocksStore, again: RocksStore) -> tuple[int, list[str]]:
    """Return the number of equal keys, and the differences, of the families that the kernel writes."""
    equal, differences, unequal = 0, [], 0
    for family in KERNEL_FAMILIES:
        for key, value, wanted in _merged(store.scan(family, b""), again.scan(family, b"")):
            if value == wanted:
                equal += 1
                continue
            unequal += 1
            if unequal <= _DIFFERENCES_SHOWN:
                differences.append(f"{family} {key.hex()}: {_shown(value)}, recomputed from the log {_shown(wanted)}")
    if unequal:
        differences.append(f"{unequal} keys of the state differ")
    return equal, differences


def _merged(
    one: Iterator[tuple[bytes, bytes]], other: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Merge two ascending scans to (key, value in the first, value in the second)."""
    first, second = next(one, None), next(other, None)
    while first is not None or second is not None:
        if second is None or (first is not None and first[0] < second[0]):
            assert first is not None
            yield first[0], first[1], None
            first = next(one, None)
        elif first is None or second[0] < first[0]:
            yield second[0], None, second[1]
            second = next(other, None)
        else:
            yield first[0], first[1], second[1]
            first, second = next(one, None), next(other, None)


def _shown(value: bytes | None) -> str:
    return "missing" if value is None else value[:32].hex()
