"""Claim: whatever is lost or turned back, `popstream restore` and a start lead to what an undisturbed job would have.

Method: a job decides what clients send, a snapshot is taken half-way, more is decided, and the job stops. Then one
thing is damaged; the start is refused with the command; the command's own function restores; the job replays. Compared
with a fresh job over the same log: state byte for byte, rows but for apply_seq and state_epoch, each key once.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from delta.tables import DeltaTable
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from broker_state.audit import RejectedRow
from broker_state.store.overlay import STATE
from broker_state.store.rocks_store import BUILDER_FAMILIES, META, UNITS, RocksStore
from checkpoints.applied import applied_of as applied_in
from checkpoints.layout import JobFolder
from checkpoints.replay import REPLAY_KEY, Replay
from connectors.delta.retention import delete_before, newest_day
from connectors.delta.rows import encode_rows
from connectors.delta.tables import AUDIT_TABLES, table_path
from connectors.kafka.topic_admin import describe
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.quarantine import Quarantine, quarantine_change
from pipelines.decide_ops.entries import TABLE_NUMBERS
from pipelines.decide_ops.entry import Entry, EntryKind
from pipelines.recovery.candidates import EMPTY, PRESENT, PUT_ASIDE
from pipelines.recovery.ops_log import read_log_bounds
from pipelines.recovery.replaced_files import move_tables_away
from pipelines.recovery.restore import restore
from pipelines.recovery.take_snapshot import take_snapshot
from popstream.wire.base_errors import Corrupt, Invalid
from popstream.wire.handle import decode_handle
from tests.support.flipped_byte import flip_byte
from tests.support.in_process.restore_scene import OPS_PARTITIONS, RestoreScene
from tests.support.left_behind import applied_of, audit_rows, damage, end_offsets, families_of
from tests.support.processes.job_process import POPSTREAM
from tests.support.wire import Wire, wait_for
from tests.support.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def played(spark: SparkSession, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> RestoreScene:
    """What a healthy job left: each test damages a copy."""
    scene = RestoreScene(spark, kafka.bootstrap_servers, tmp_path_factory.mktemp("played"))
    scene.play()
    return scene


@pytest.fixture
def scene(played: RestoreScene, tmp_path: Path) -> RestoreScene:
    return played.copied(tmp_path)


def lose_state(scene: RestoreScene) -> None:
    shutil.rmtree(scene.folder.state)


def turn_state_back(scene: RestoreScene) -> None:
    """As from an older backup, or as WAL recovery does after damage in the middle."""
    shutil.rmtree(scene.folder.state)
    (taken,) = scene.snapshots.list()
    scene.snapshots.fetch(taken, scene.folder.root)


def restore_delta(scene: RestoreScene) -> None:
    for table in ("operations", "deliveries"):
        DeltaTable.forPath(scene.spark, str(table_path(scene.folder.delta, table))).restoreToVersion(0)


def lose_commits(scene: RestoreScene) -> None:
    """The last commits of two tables, as a power loss takes what nobody had synced."""
    for table in ("operations", "commit_positions"):
        commits = sorted((table_path(scene.folder.delta, table) / "_delta_log").glob("*.json"))
        for commit in commits[len(commits) // 2 :]:
            commit.unlink()
            for crc in commit.parent.glob(f"*{commit.stem}*.crc"):
                crc.unlink()
    scene.spark.catalog.clearCache()
    jvm: Any = scene.spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def restore_every_table(scene: RestoreScene) -> None:
    """To before the first commit: no table knows any state epoch by its rows."""
    for table in AUDIT_TABLES:
        DeltaTable.forPath(scene.spark, str(table_path(scene.folder.delta, table))).restoreToVersion(0)


@pytest.mark.parametrize(
    ("harm", "said", "sources", "is_compared"),
    [
        pytest.param(lose_state, "there is no state", ["snapshot {}"], True, id="rocksdb lost"),
        pytest.param(
            turn_state_back,
            "later decisions than the state",
            [PRESENT],
            True,
            id="rocksdb restored from an older backup",
            marks=pytest.mark.long,
        ),
        # The snapshot counts on rows in Delta or has them all in its outbox, as the first flush has it.
        pytest.param(
            restore_delta, "RESTOREd", ["snapshot {}", EMPTY], True, id="delta restored", marks=pytest.mark.long
        ),
        pytest.param(
            restore_every_table, "RESTOREd", ["snapshot {}", EMPTY], False, id="all restored", marks=pytest.mark.long
        ),
        pytest.param(lose_commits, "Delta has lost commits", ["snapshot {}", EMPTY], True, id="delta lost commits"),
    ],
)
def test_a_start_is_refused_and_a_restore_heals(
    scene: RestoreScene, harm: Callable[[RestoreScene], None], said: str, sources: list[str], *, is_compared: bool
) -> None:
    harm(scene)
    refused = scene.refusal()
    assert said in refused
    assert "`popstream restore`" in refused
    restored = scene.restore()
    assert restored.source in [source.format(scene.snapshot_id) for source in sources], restored
    assert restored.to_replay > 0
    assert (scene.drain().verified_rows > 0) == is_compared
    scene.compare_with_a_fresh_job()


@pytest.mark.long
def test_a_wal_that_was_damaged_in_the_middle_is_a_state_turned_back(scene: RestoreScene) -> None:
    whole = applied_of(scene.folder.state).apply_seq
    shutil.rmtree(scene.folder.state)
    shutil.copytree(scene.folder.root / "image", scene.folder.state)
    assert applied_of(scene.folder.state).apply_seq == whole
    wal = max(scene.folder.state.glob("*.log"), key=lambda log: log.stat().st_size)
    damage(wal, wal.stat().st_size // 3)
    assert 0 < applied_of(scene.folder.state).apply_seq < whole
    assert "Delta has rows of later decisions than the state" in scene.refusal()
    scene.restore()
    scene.drain()
    scene.compare_with_a_fresh_job()


@pytest.mark.long
def test_a_state_with_a_damaged_file_is_passed_over(scene: RestoreScene) -> None:
    turn_state_back(scene)
    table = max(scene.folder.state.glob("*.sst"), key=lambda file: file.stat().st_size)
    damage(table, 20)  # in the first of its blocks, whose keys and values come first
    # By the command: the blocks of this process's cache are those of before the damage.
    command = ["restore", "--json", "--folder", str(scene.folder.root), "--bootstrap-servers", scene.servers]
    done = subprocess.run(
        [POPSTREAM, *command, "--prefix", scene.prefix], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    restored = json.loads(done.stdout)
    assert restored["source"] == f"snapshot {scene.snapshot_id}"
    (why,) = restored["passed_over"]
    # Opening the store reads that block already, for its last WriteBatch.
    assert why.startswith(f"{PRESENT}: the state cannot be read: Corruption: block checksum mismatch")
    assert f"state/{table.name}" in why
    scene.drain()
    scene.compare_with_a_fresh_job()


def test_a_builders_store_with_a_damaged_file_is_built_anew(scene: RestoreScene) -> None:
    """It opens: damage is met when it is read."""
    with RocksStore(scene.root / "made", BUILDER_FAMILIES) as store:
        store.write_changes([(UNITS, b"%06d" % number, number.to_bytes(400)) for number in range(5_000)])
        store.copy_to(scene.folder.queues)
    table = max(scene.folder.queues.glob("*.sst"), key=lambda file: file.stat().st_size)
    damage(table, table.stat().st_size // 2)
    restored = scene.restore()
    assert restored.source == PRESENT
    assert restored.replaced is not None
    assert (Path(restored.replaced) / "queues").is_dir()
    assert not scene.folder.queues.exists()


def test_rows_that_retention_has_deleted_do_not_come_back(scene: RestoreScene) -> None:
    """Those of whole dates: here of all dates that two tables have, and of none of the others."""
    shortened = ("operations", "deliveries")
    for table in shortened:
        newest = newest_day(scene.folder.delta, table)
        assert newest is not None
        assert delete_before(scene.folder.delta, AUDIT_TABLES[table], newest + dt.timedelta(days=1)).rows > 0
    lose_state(scene)
    scene.restore()
    scene.drain()
    fresh = scene.fresh_job()
    assert families_of(scene.folder.state) == families_of(fresh.state)
    for table in AUDIT_TABLES:
        wanted = [] if table in shortened else audit_rows(fresh.delta, table)
        assert audit_rows(scene.folder.delta, table) == wanted, table
    assert scene.verify().differences == []


def test_rows_that_somebody_changed_are_noticed_by_the_replay(scene: RestoreScene) -> None:
    turn_state_back(scene)
    path = table_path(scene.folder.delta, "operations")
    table = DeltaTable.forPath(scene.spark, str(path))
    last = table.toDF().orderBy("partition", "kafka_offset", "ordinal").tail(1)[0]
    table.update(
        f"partition = {last['partition']} AND kafka_offset = {last['kafka_offset']} AND ordinal = {last['ordinal']}",
        {"code": "99"},
    )
    scene.restore()
    job = scene.start(ticks=False)
    assert job.wait(60)
    job.stop()
    assert isinstance(job.failure, Corrupt)
    assert "operations has other rows than its log leads to" in str(job.failure)


@pytest.mark.long
def test_a_record_that_was_quarantined_stays_so(scene: RestoreScene) -> None:
    """An older state has not heard of it, and would decide it now: the tables would contradict that for ever."""
    rejected = DeltaTable.forPath(scene.spark, str(table_path(scene.folder.delta, "rejected")))
    row = rejected.toDF().orderBy("partition", "kafka_offset").tail(1)[0]
    place = f"partition = {row['partition']} AND kafka_offset = {row['kafka_offset']}"
    rejected.update(place, {"reason": "'QUARANTINED'", "detail": "'it killed the job'"})
    lose_state(scene)
    scene.restore()
    with RocksStore(scene.folder.state) as store:
        assert list(Quarantine(store)) == [((row["partition"], row["kafka_offset"]), "it killed the job")]
    assert scene.drain().verified_rows


@pytest.mark.long
def test_a_record_stays_quarantined_when_its_table_is_computed_again(scene: RestoreScene) -> None:
    """The state that knows of it counts on rows that the new table does not have: an older one is taken."""
    path = table_path(scene.folder.delta, "rejected")
    row = DeltaTable.forPath(scene.spark, str(path)).toDF().orderBy("partition", "kafka_offset").tail(1)[0]
    record = row["partition"], row["kafka_offset"]
    with RocksStore(scene.folder.state) as store:
        store.write_changes([quarantine_change(*record, "it killed the job")])
    move_tables_away(scene.folder, ["rejected"])
    assert scene.restore().source != PRESENT
    with RocksStore(scene.folder.state) as store:
        assert list(Quarantine(store)) == [(record, "it killed the job")]


@pytest.mark.long
def test_rows_that_no_log_leads_to_any_more_are_given_up_only_with_consent(scene: RestoreScene) -> None:
    """A table was moved away, and retention has taken what it came from. The state is as good as it was."""
    shutil.move(table_path(scene.folder.delta, "deliveries"), scene.root / "away")
    facts = describe(scene.connection, [scene.topics.ops])[scene.topics.ops]
    whole = read_log_bounds(scene.connection, facts)
    log = msgspec.structs.replace(whole, first_offset={p: end - 10 for p, end in whole.end_offset.items()})
    before = families_of(scene.folder.state)
    options = (scene.folder, log, scene.connection, scene.spark, scene.snapshots)
    with pytest.raises(Corrupt, match="no state can be continued") as caught:
        restore(*options, lossy=False)
    assert "deliveries has lost rows that it counts on" in str(caught.value)
    restored = restore(*options, lossy=True)
    assert restored.source == PRESENT
    assert len(restored.lost) == 1
    assert families_of(scene.folder.state) == before, "no handle had to die"
    scene.drain()
    assert applied_of(scene.folder.state).state_epoch == restored.since_loss[-1]


@pytest.mark.parametrize("with_an_up_in_between", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_restore_that_was_killed_has_lost_nothing(scene: RestoreScene, *, with_an_up_in_between: bool) -> None:
    """Between the two renames there is no state. No snapshot, and no log, leads to the one that was put aside."""
    last = applied_of(scene.folder.state)
    aside = scene.folder.replaced / "20261122T000000Z-abcdef"
    aside.mkdir(parents=True)
    scene.folder.state.rename(aside / "state")
    if with_an_up_in_between:
        with pytest.raises(Corrupt, match=r"there is no state.*popstream restore"):
            scene.start()
        assert scene.folder.state.is_dir()
    facts = describe(scene.connection, [scene.topics.ops])[scene.topics.ops]
    log = msgspec.structs.replace(read_log_bounds(scene.connection, facts), first_offset=last.next_offset)
    restored = restore(scene.folder, log, scene.connection, scene.spark, scene.snapshots, lossy=False)
    assert (restored.source, restored.apply_seq) == (f"{PUT_ASIDE} in {aside.name}", last.apply_seq)
    assert scene.snapshot_id in "".join(restored.passed_over)
    assert (aside / "state").is_dir()


@pytest.mark.long
def test_a_topic_that_was_made_again(scene: RestoreScene) -> None:
    """Nothing is given up without consent, and the old topic's rows are not taken for rows of the new one."""
    facts = describe(scene.connection, [scene.topics.ops])[scene.topics.ops]
    nothing = dict.fromkeys(range(OPS_PARTITIONS), 0)
    log = msgspec.structs.replace(
        read_log_bounds(scene.connection, facts), topic_id="another", first_offset=nothing, end_offset=nothing
    )
    options = (scene.folder, log, scene.connection, scene.spark, scene.snapshots)
    with pytest.raises(Corrupt, match="no state can be continued") as caught:
        restore(*options, lossy=False)
    assert f"{EMPTY}: {scene.topics.ops} does not lead to what was decided before" in str(caught.value)
    late = RejectedRow(0, 1 << 40, 0, 1, "NOT_JSON", "it was not in Delta yet", 0, "", b"", None, None)
    with RocksStore(scene.folder.state) as store:
        outbox = Outbox(store)
        assert list(outbox.undelivered(EntryKind.AUDIT)), "nothing waits: nothing is shown"
        seq = applied_in(store).apply_seq
        (encoded,) = encode_rows("rejected", [late])
        waiting = Entry(EntryKind.AUDIT, seq, 9_999, bytes([TABLE_NUMBERS["rejected"]]) + encoded)
        store.write_changes(outbox.changes([waiting]))
    before = {table: audit_rows(scene.folder.delta, table) for table in AUDIT_TABLES}
    first = restore(*options, lossy=True)
    assert first.source == PRESENT
    second = restore(*options, lossy=False)
    assert (second.source, second.lost) == (PRESENT, [])
    assert second.since_loss[:-1] == first.since_loss
    after = {table: audit_rows(scene.folder.delta, table) for table in AUDIT_TABLES}
    (fresh,) = [row for row in after["rejected"] if row not in before["rejected"]]
    assert (fresh["kafka_offset"], fresh["ops_topic_id"]) == (late.kafka_offset, facts.topic_id)
    after["rejected"].remove(fresh)
    assert after == before
    with RocksStore(scene.folder.state) as store:
        assert not list(Outbox(store).undelivered(EntryKind.AUDIT))


@pytest.mark.long
def test_a_log_that_lost_records_is_restored_only_with_consent(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Retention passed what is to be decided: then, and only then, handles of the lost time die.

    What is left of the log is decided otherwise than it was, and the rows of then stay.
    """
    scene = RestoreScene(spark, kafka.bootstrap_servers, tmp_path)
    scene.play()
    lose_state(scene)
    begin = {number: end - 30 for number, end in end_offsets(scene.servers, scene.topics.ops).items()}
    with KafkaAdminClient(bootstrap_servers=scene.servers) as admin:
        admin.delete_records({TopicPartition(scene.topics.ops, number): offset for number, offset in begin.items()})
    assert "`popstream restore" in scene.refusal()
    with pytest.raises(Corrupt, match="no state can be continued") as caught:
        scene.restore()
    assert caught.value.details[-1] == "the least of these losses is accepted by `popstream restore --lossy`"
    restored = scene.restore(lossy=True)
    assert restored.source == f"snapshot {scene.snapshot_id}"
    assert restored.lost
    with RocksStore(scene.folder.state) as store:
        applied = applied_in(store)
        stored = store.get(META, REPLAY_KEY)
        take_snapshot(store, None, scene.folder.scratch, scene.snapshots)
    assert applied.next_offset == begin
    assert stored is not None
    assert Replay.decode(stored).lost == restored.lost
    job = scene.start()
    with Workload(scene.servers, scene.topics, OPS_PARTITIONS, seed=9, pause_s=0.005) as clients:
        wait_for(lambda: clients.sent > 150 and len(clients.answers) > 100, job)
        # The client reads all answers there ever were: those of other names are of before.
        pops = [answer for answer in list(clients.answers.values()) if answer["type"] == "pop" and answer.get("handle")]
        of_before = [answer for answer in pops if not answer["op_id"].startswith("w9-")]
        with Wire(job) as wire:
            late = [ack_for_billing(wire, answer) for answer in of_before[-30:]]
        assert {True: late.count(True), "STALE_HANDLE": "STALE_HANDLE" in late} == {True: 0, "STALE_HANDLE": True}
    job.stop()
    assert job.failure is None
    assert not scene.verify().differences
    handles = [decode_handle(answer["handle"]) for answer in pops if answer not in of_before]
    assert handles
    assert all(handle is not None and handle.epoch > 1 << 32 for handle in handles)


def ack_for_billing(wire: Wire, pop: dict[str, Any]) -> Any:
    """The reason why what that pop has leased cannot be acked; True when it can."""
    queue = pop["topic"], pop["queue_id"]
    entry = {"handle": 0, "offsets": [[first, last] for first, last, _ in pop["messages"]]}
    answer = wire.ask("ack", *queue, handles=[{"group": "billing", "handle": pop["handle"]}], entries=[entry])
    return answer["applied"] or answer["reason"]


@pytest.mark.long
def test_a_log_that_lost_its_end_is_restored_over_a_new_topic_only(scene: RestoreScene) -> None:
    """Its next records would get offsets of which the tables have rows; an older snapshot would not help."""
    facts = describe(scene.connection, [scene.topics.ops])[scene.topics.ops]
    whole = read_log_bounds(scene.connection, facts)
    cut = msgspec.structs.replace(whole, end_offset={p: end - 20 for p, end in whole.end_offset.items()})
    for state in ("present", "of the snapshot", "present, of which Delta has nothing"):
        if "Delta" in state:
            lose_state(scene)
            shutil.copytree(scene.folder.root / "image", scene.folder.state)
            shutil.rmtree(scene.folder.delta)
        with pytest.raises(Corrupt, match="has lost its end") as caught:
            restore(scene.folder, cut, scene.connection, scene.spark, scene.snapshots, lossy=True)
        assert f"partition 0 ends at {cut.end_offset[0]}" in str(caught.value), state
        if state == "present":
            turn_state_back(scene)


@pytest.mark.long
def test_two_hosts_with_a_disk_each_and_the_same_tables(scene: RestoreScene) -> None:
    """The second one has decided the same log by itself, or nothing yet; neither may write beside the first."""
    other = JobFolder(scene.root / "other")
    scene.drain(other.root)
    shutil.rmtree(other.delta)
    other.delta.symlink_to(scene.folder.delta)
    with pytest.raises(Corrupt, match="the audit tables have decisions of another state than this one"):
        scene.start(other.root)
    shutil.rmtree(other.state)
    with pytest.raises(Corrupt, match="there is no state, but the audit tables have decisions"):
        scene.start(other.root)


def test_verify_finds_all_as_it_must_be(scene: RestoreScene) -> None:
    found = scene.verify()
    assert not found.differences
    assert found.base == "an empty state"
    assert found.records == sum(end_offsets(scene.servers, scene.topics.ops).values())
    assert found.keys == sum(len(keys) for keys in families_of(scene.folder.state).values())
    assert found.rows == {table: len(audit_rows(scene.folder.delta, table)) for table in AUDIT_TABLES}
    assert not any(found.not_in_delta.values())


@pytest.mark.parametrize("since", ["newest", pytest.param("its id", marks=pytest.mark.long)])
def test_verify_from_a_snapshot_on(scene: RestoreScene, since: str) -> None:
    found = scene.verify(scene.snapshot_id if since == "its id" else since)
    assert not found.differences
    assert found.base == f"snapshot {scene.snapshot_id}"
    assert 0 < found.records < sum(end_offsets(scene.servers, scene.topics.ops).values())
    assert 0 < found.rows["operations"] < len(audit_rows(scene.folder.delta, "operations"))
    with pytest.raises(Invalid, match="the log is not complete after a snapshot `another`"):
        scene.verify("another")


def test_verify_tells_what_differs(scene: RestoreScene) -> None:
    """A byte of the state, a row too many, a row too few and a row that was changed."""
    with RocksStore(scene.folder.state) as store:
        key, value = next(iter(store.scan(STATE, b"")))
        store.write_changes([(STATE, key, value + b"!")])
    deliveries, positions, operations = (
        DeltaTable.forPath(scene.spark, str(table_path(scene.folder.delta, table)))
        for table in ("deliveries", "commit_positions", "operations")
    )
    first = deliveries.toDF().orderBy("partition", "kafka_offset", "ordinal").head()
    assert first is not None
    place = f"partition = {first['partition']} AND kafka_offset = {first['kafka_offset']}"
    deliveries.update(place, {"attempt": "77"})
    # Not the last ones, which may still be in the outbox: then they are not missing.
    moved = positions.toDF().orderBy("partition", "kafka_offset", "ordinal").head()
    assert moved is not None
    positions.delete(f"partition = {moved['partition']} AND kafka_offset = {moved['kafka_offset']}")
    odd = operations.toDF().limit(1).selectExpr("* EXCEPT (ordinal)", "99999 AS ordinal")
    columns = operations.toDF().columns
    odd.select(*columns).write.format("delta").mode("append").save(str(table_path(scene.folder.delta, "operations")))
    said = "\n".join(scene.verify().differences)
    assert f"state {key.hex()}" in said
    assert re.search(r"^1 of [\d,]+ [a-z_ ]+ of the state differ$", said, re.MULTILINE)
    assert re.search(r"^[1-9]\d* of [\d,]+ rows of deliveries differ$", said, re.MULTILINE)
    assert "attempt is 77 instead of 1" in said
    assert re.search(r"^[1-9]\d* of [\d,]+ rows of commit_positions are missing$", said, re.MULTILINE)
    assert re.search(r"^1 of [\d,]+ rows of operations are too many$", said, re.MULTILINE)
    assert "row 99999 is too many" in said


@pytest.mark.long
def test_a_chosen_snapshot_is_taken_and_no_other(scene: RestoreScene) -> None:
    assert scene.restore(only=scene.snapshot_id).source == f"snapshot {scene.snapshot_id}"
    scene.drain()
    scene.compare_with_a_fresh_job()
    kept = next((scene.folder.root / "replaced").iterdir())
    with RocksStore(kept / "state", read_only=True) as store:
        assert applied_in(store).apply_seq > 0
    assert json.loads((scene.folder.snapshots / "manifests" / f"{scene.snapshot_id}.json").read_bytes())["version"] == 1


def delete_checkpoint(scene: RestoreScene) -> None:
    shutil.rmtree(scene.folder.spark)


def damage_checkpoint(scene: RestoreScene) -> None:
    for file in [path for path in scene.folder.spark.rglob("*") if path.is_file()]:
        file.write_bytes(b"v9\ngarbage")


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(delete_checkpoint, id="checkpoint deleted", marks=pytest.mark.long),
        pytest.param(damage_checkpoint, id="spark checkpoint damaged", marks=pytest.mark.long),
    ],
)
def test_a_start_needs_no_checkpoint(scene: RestoreScene, harm: Callable[[RestoreScene], None]) -> None:
    """The last of the module: the log that all tests share becomes longer."""
    assert any(scene.folder.spark.rglob("offsets/*"))
    harm(scene)
    job = scene.start(ticks=False)
    with Workload(scene.servers, scene.topics, OPS_PARTITIONS, seed=12, pause_s=0.005) as clients:
        wait_for(lambda: any(op_id.startswith("w12-") for op_id in [*clients.answers]), job)
    scene.wait_until_all_is_in_delta(job)
    job.stop()
    assert job.failure is None
    scene.compare_with_a_fresh_job()


def test_a_running_job_reports_a_damaged_file_and_continues(scene: RestoreScene) -> None:
    """Last of the tests, because it adds to the log that they share."""
    job = scene.start(scrub_interval_s=0.5)
    job.store.copy_to(scene.root / "flushed")
    table = scene.folder.state / job.store.table_files()[-1]
    flip_byte(table, table.stat().st_size - 60)  # of its metaindex, which RocksDB has read
    wait_for(lambda: job.report().damage, job)
    assert job.report().damage[0].startswith(f"state/{table.name} is damaged: ")
    assert job.metrics.registry.get_sample_value("popstream_damaged_files") == 1
    with pytest.raises(Corrupt, match=f"no snapshot was taken: state/{table.name} is damaged: "):
        job.take_snapshot()
    assert [snapshot.id for snapshot in scene.snapshots.list()] == [scene.snapshot_id]
    with Workload(scene.servers, scene.topics, OPS_PARTITIONS, seed=12) as clients:
        wait_for(lambda: len(clients.answers) > 5, job)
    job.stop()
    assert job.failure is None
    # A compaction may have read the file and deleted it: its blocks are whole, and what the job holds of it too.
    intact = f"snapshot {scene.snapshot_id}" if table.exists() else "the present state"
    assert scene.restore().source == intact
