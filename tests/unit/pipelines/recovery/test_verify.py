"""Claim: `popstream verify` compares every row and every key, names what differs, and goes on after a stop.

Method: a log of three partitions is decided as a job does it, with its tables written by hand and the last rows in the
outbox; then one thing is changed. The shares run in this process.
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from broker_state.store.overlay import STATE
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.snapshot_retention import SnapshotRetention
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE
from pipelines.apply_ops.quarantine import quarantine_change
from pipelines.cli.state.verify_state import _facts
from pipelines.recovery.progress import Progress
from pipelines.recovery.take_snapshot import take_snapshot
from pipelines.recovery.verify import planning
from pipelines.recovery.verify.base import choose_base
from pipelines.recovery.verify.planning import require_undamaged
from pipelines.recovery.verify.work_folder import WorkFolder
from popstream.wire.base_errors import RESTORE, Corrupt, Fenced, Invalid
from tests.support.flipped_byte import flip_byte
from tests.support.in_process.verify_scene import VerifyScene, WrittenTable
from tests.support.left_behind import damage
from tests.support.written_rows import rows_of

if TYPE_CHECKING:
    from checkpoints.snapshot_store import Snapshot
    from pipelines.recovery.progress import ProgressReport


class StoppedError(Exception):
    """Stands for a kill."""


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VerifyScene:
    monkeypatch.setattr(planning, "SLICE_OFFSETS", 30)
    scene = VerifyScene(tmp_path, monkeypatch)
    scene.decide()
    return scene


def test_units_whose_store_is_missing_are_counted(scene: VerifyScene) -> None:
    """Otherwise a lost `queues/` would look as if everything were equal."""
    table = WrittenTable(scene.delta, CONSUME_QUEUE.name)
    assert scene.verify().units is None, "a job without message topics"
    table.append(rows_of(CONSUME_QUEUE, dt.date(1970, 1, 1)))
    found = scene.verify()
    assert found.differences == []
    assert found.units is not None
    lines = found.units.not_in_store
    assert sum(int(line.partition(" ")[0]) for line in lines if line.endswith("store is missing or empty")) > 0
    assert "not compared 1" in dict(_facts(found))


def test_everything_is_compared(scene: VerifyScene) -> None:
    found = scene.verify()
    assert found.differences == []
    assert found.units is None
    assert (found.base, found.records) == ("an empty state", scene.total)
    assert sorted(scene.decided) == sorted((p, n) for p, log in scene.records.items() for n in range(len(log)))
    in_delta = {
        name: sum(pa.parquet.read_metadata(file).num_rows for file in scene.files[name]) for name in AUDIT_TABLES
    }
    assert found.rows == in_delta
    assert found.rows["operations"] + found.not_in_delta["operations"] == scene.total - 1
    assert found.not_in_delta["rejected"] == 1
    with RocksStore(scene.state) as store:
        keys = [key for family in ("state", "ops", "deadlines") for key, _ in store.scan(family, b"")]
    assert found.keys == len(keys)
    assert not scene.work().plan.exists()


def test_a_byte_of_the_state_is_named_with_queue_and_key(scene: VerifyScene) -> None:
    with RocksStore(scene.state) as store:
        key, value = next(iter(store.scan(STATE, b"")))
        store.write_changes([(STATE, key, value + b"!")])
    first, example, advice = scene.verify().differences
    assert re.fullmatch(r"1 of \d+ [a-z_ ]+ of the state differ", first)
    assert f"orders/0, state {key.hex()}: " in example
    assert advice == "if the state is wrong, stop the job and run `popstream restore --snapshot none`"


def test_a_value_that_was_changed_is_named_with_its_place_and_both_values(scene: VerifyScene) -> None:
    def change(rows: pa.Table) -> pa.Table:
        attempts = pc.if_else(pc.equal(rows["kafka_offset"], rows["kafka_offset"][0]), 77, rows["attempt"])
        return rows.set_column(rows.schema.get_field_index("attempt"), "attempt", attempts.cast(pa.int32()))

    scene.change_rows("deliveries", change)
    head, example, advice = scene.verify().differences
    assert re.fullmatch(r"\d+ of \d+ rows of deliveries differ", head)
    assert re.fullmatch(r"orders/\d, Kafka offset \d+ of partition \d, row 0: attempt is 77 instead of 1", example)
    assert advice == "if deliveries is wrong, stop the job and run `popstream restore --rebuild deliveries`"


def test_texts_that_were_erased_are_no_difference(scene: VerifyScene) -> None:
    def erase(rows: pa.Table) -> pa.Table:
        erased = pa.array(["handler: (erased)"] * rows.num_rows)
        return rows.set_column(rows.schema.get_field_index("cause"), "cause", erased)

    def invent(rows: pa.Table) -> pa.Table:
        invented = pa.array(["something else"] * rows.num_rows)
        return rows.set_column(rows.schema.get_field_index("cause"), "cause", invented)

    scene.change_rows("deliveries", erase)
    assert scene.verify().differences == []
    scene.change_rows("deliveries", invent)
    assert scene.verify().differences


def test_rows_that_retention_has_deleted_are_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records come 12 hours apart. Files of the first dates go, whole; of the date of the cut all rows are compared."""
    scene = VerifyScene(tmp_path, monkeypatch)
    for log in scene.records.values():
        log[:] = [each._replace(timestamp_ms=number * 43_200_000) for number, each in enumerate(log)]
    scene.decide()
    everything = scene.verify()
    assert everything.differences == []
    deliveries = scene.tables["deliveries"]
    first, *_ = scene.files["deliveries"]
    cut = max(pa.parquet.read_table(first)["now_ms"].to_pylist()) // 86_400_000 + 1
    removed = {"path": first.name, "dataChange": True}
    txn = {"appId": "history/first_day", "version": cut}
    deliveries.commit("DELETE", [{"txn": txn}, {"remove": removed}])

    found = scene.verify()

    assert found.differences == []
    assert 0 < found.rows["deliveries"] < everything.rows["deliveries"]
    assert found.rows["operations"] == everything.rows["operations"]
    scene.change_rows("deliveries", lambda rows: rows.slice(0, rows.num_rows - 1))
    assert scene.verify().differences[0].endswith("rows of deliveries are missing")


def test_missing_repeated_and_surplus_rows_are_counted(scene: VerifyScene) -> None:
    scene.change_rows("operations", lambda rows: rows.slice(2))
    scene.change_rows("deliveries", lambda rows: pa.concat_tables([rows, rows.slice(0, 3)]))

    def add(rows: pa.Table) -> pa.Table:
        column = rows.schema.get_field_index("ordinal")
        return pa.concat_tables([rows, rows.slice(0, 1).set_column(column, "ordinal", pa.array([9], pa.int32()))])

    scene.change_rows("commit_positions", add)
    said = "\n".join(scene.verify().differences)
    assert re.search(rf"^2 of {scene.total - 1} rows of operations are missing$", said, re.MULTILINE)
    assert re.search(r"^3 of \d+ rows of deliveries are there repeatedly$", said, re.MULTILINE)
    assert re.search(r"^1 of \d+ rows of commit_positions are too many$", said, re.MULTILINE)
    assert "row 9 is too many" in said


def test_rows_that_are_neither_in_delta_nor_in_the_outbox_are_missing(scene: VerifyScene) -> None:
    with RocksStore(scene.state) as store:
        gone = [key for key, _ in store.scan("outbox", b"\x04", b"\x05")]
        store.write_changes([("outbox", key, None) for key in gone])
    said = scene.verify().differences
    assert any(re.fullmatch(r"\d+ of \d+ rows of operations are missing", line) for line in said)
    assert "1 of 1 rows of rejected are missing" in said


def test_a_table_that_is_gone_is_all_missing(scene: VerifyScene) -> None:
    (scene.delta / "deliveries").rename(scene.root / "away")
    assert any(
        re.fullmatch(r"(\d+) of \d+ rows of deliveries are missing", line) for line in scene.verify().differences
    )


@pytest.mark.parametrize("harm", ["truncated", "missing", "not Parquet"])
def test_a_damaged_data_file_is_named_with_what_to_do(scene: VerifyScene, harm: str) -> None:
    file = scene.files["deliveries"][0]
    data = file.read_bytes()
    file.unlink()
    if harm == "truncated":
        file.write_bytes(data[: len(data) // 2])
    elif harm == "not Parquet":
        file.write_bytes(b"?" * len(data))
    wanted = rf"a data file of deliveries is damaged: .*{file.name}.*run `popstream restore --rebuild deliveries`"
    with pytest.raises(Corrupt, match=wanted):
        scene.verify()


def test_a_damaged_commit_is_named(scene: VerifyScene) -> None:
    commit = scene.delta / "operations" / "_delta_log" / f"{1:020d}.json"
    commit.write_bytes(commit.read_bytes()[:40])
    with pytest.raises(Corrupt, match=r"the log of operations is damaged: .*0001\.json cannot be read"):
        scene.verify()


def test_a_verification_that_was_stopped_goes_on(scene: VerifyScene) -> None:
    def stop(read: int) -> None:
        if read == scene.total // 2:
            raise StoppedError

    scene.on_read = stop
    with pytest.raises(StoppedError):
        scene.verify()
    scene.on_read = lambda _: None
    found = scene.verify()
    assert found.differences == []
    assert found.records == scene.total
    assert 0 < len(scene.decided) < scene.total
    assert scene.reports[1].doing == "going on with the verification that was stopped"


def test_differences_from_before_a_stop_are_kept(scene: VerifyScene) -> None:
    scene.change_rows("operations", lambda rows: rows.slice(2))
    wanted = scene.verify().differences

    def stop(read: int) -> None:
        if read == scene.total - 5:
            raise StoppedError

    scene.on_read = stop
    with pytest.raises(StoppedError):
        scene.verify()
    scene.on_read = lambda _: None
    assert scene.verify().differences == wanted


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ("log", "the ops topic is another one"),
        ("state", "the state is another one"),
        ("table", "operations was changed"),
        ("quarantine", "the quarantine is another one"),
        ("fresh", None),
        ("since", "it began elsewhere"),
        ("job", "the job runs now, and writes to the state that it began with"),
    ],
)
def test_a_stopped_verification_is_given_up_when_its_inputs_have_changed(
    scene: VerifyScene, changed: str, why: str | None
) -> None:
    scene.on_read = lambda read: (_ for _ in ()).throw(StoppedError) if read == scene.total // 2 else None
    with pytest.raises(StoppedError):
        scene.verify()
    scene.on_read = lambda _: None
    options: dict[str, Any] = {}
    with RocksStore(scene.state) as store:
        if changed == "log":
            other = msgspec.structs.replace(scene.applied, ops_topic_id="another")
            store.write_changes([(META, APPLIED_KEY, other.encode())])
        if changed == "state":
            other = msgspec.structs.replace(scene.applied, state_epoch="another")
            store.write_changes([(META, APPLIED_KEY, other.encode())])
        if changed == "quarantine":
            store.write_changes([quarantine_change(2, 3, "it killed the job")])
    if changed == "table":
        scene.change_rows("operations", lambda rows: rows)
    if changed == "fresh":
        options = {"fresh": True}
    if changed == "since":
        options = {"since": "newest"}
    if changed == "job":
        options = {"is_copy": True}
    if changed in {"log", "since"}:
        with pytest.raises((Corrupt, Invalid)):
            scene.verify(**options)
        return
    scene.verify(**options)
    assert len(scene.decided) == scene.total
    said = [report.doing for report in scene.reports]
    assert (f"a verification that was stopped is given up: {why}" in said) == (why is not None)


@pytest.mark.parametrize("runs", [True, False])
def test_a_verification_that_began_beside_a_job_goes_on_with_its_copy(scene: VerifyScene, *, runs: bool) -> None:
    """Whether the job has gone on meanwhile, or was stopped."""
    scene.on_read = lambda read: (_ for _ in ()).throw(StoppedError) if read == scene.total // 2 else None
    with pytest.raises(StoppedError):
        scene.verify(is_copy=True)
    scene.on_read = lambda _: None
    if runs:
        with RocksStore(scene.state) as store:
            later = msgspec.structs.replace(scene.applied, apply_seq=scene.applied.apply_seq + 1)
            key, value = next(iter(store.scan(STATE, b"")))
            store.write_changes([(META, APPLIED_KEY, later.encode()), (STATE, key, value + b"!")])
    assert scene.verify(is_copy=runs).differences == []
    assert len(scene.decided) < scene.total


def test_appends_and_compactions_of_the_job_do_not_end_a_stopped_verification(scene: VerifyScene) -> None:
    scene.on_read = lambda read: (_ for _ in ()).throw(StoppedError) if read == scene.total // 2 else None
    with pytest.raises(StoppedError):
        scene.verify()
    scene.on_read = lambda _: None
    table = scene.tables["operations"]
    with pa.parquet.ParquetFile(scene.files["operations"][0]) as file:
        rows = file.read()
    later = rows.set_column(
        rows.schema.get_field_index("kafka_offset"), "kafka_offset", pc.add(rows["kafka_offset"], 10**6)
    )
    days = pa.array([0] * rows.num_rows, pa.int32()).cast(pa.date32())
    table.append(later.append_column("op_date", days), "apply_ops/operations/epoch")
    table.commit("OPTIMIZE", [])
    assert scene.verify().differences == []
    assert len(scene.decided) < scene.total


def test_a_damaged_column_that_no_replay_leads_to_is_named(scene: VerifyScene) -> None:
    victim = scene.files["operations"][0]
    found = pa.parquet.read_metadata(victim).row_group(0)
    column = next(
        column for column in map(found.column, range(found.num_columns)) if column.path_in_schema == "state_epoch"
    )
    damage(victim, column.dictionary_page_offset + column.total_compressed_size - 3)
    [difference] = scene.verify().differences
    assert difference.startswith(f"a data file of operations is damaged: {victim} cannot be read: ")
    assert difference.endswith("run `popstream restore --rebuild operations`")


def test_damage_in_its_own_folder_asks_for_a_fresh_verification_not_for_a_restore(
    scene: VerifyScene, tmp_path: Path
) -> None:
    scene.on_read = lambda read: (_ for _ in ()).throw(StoppedError) if read == scene.total // 2 else None
    with pytest.raises(StoppedError):
        scene.verify()
    scene.on_read = lambda _: None
    [manifest] = (tmp_path / "verify" / "share-0").glob("MANIFEST-*")
    manifest.write_bytes(b"damaged")
    with pytest.raises(Corrupt, match=r"share-0: .*: begin the verification anew, `popstream verify --fresh`$"):
        scene.verify()
    assert scene.verify(fresh=True).differences == []


def test_two_at_a_time_are_refused(scene: VerifyScene) -> None:
    with scene.work(), pytest.raises(Fenced, match="another process verifies this job"), scene.work():
        pass


def test_progress_says_what_is_done_and_how_long_it_takes() -> None:
    now = [0.0]
    reports: list[ProgressReport] = []
    progress = Progress(reports.append, lambda: now[0])
    progress.begin("reading the logs of the tables")
    for second in range(11):
        now[0] = float(second)
        progress.note("0", "deciding the log again", 1_000 + 100 * second, 5_000)
        progress.note("1", "deciding the log again", 50 * second, 1_000)
    assert [str(report) for report in reports] == [
        "reading the logs of the tables",
        "deciding the log again: 1,700 of 6,000 (28 %), 140/s, 35 s left",
        "deciding the log again: 2,450 of 6,000 (40 %), 145/s, 30 s left",
    ]


@pytest.fixture
def retained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VerifyScene:
    """A log that has lost its first record, and a snapshot."""
    scene = VerifyScene(tmp_path, monkeypatch)
    scene.decide(snapshot_after=2)
    scene.first_offset = {partition: int(len(log) > 9) for partition, log in scene.records.items()}
    return scene


@pytest.mark.parametrize("since", [None, "newest"])
def test_a_verification_begins_with_a_snapshot_if_the_log_has_lost_records(
    retained: VerifyScene, since: str | None
) -> None:
    (snapshot,) = retained.snapshots.list()
    found = retained.verify(since=since)
    assert (found.base, found.differences) == (f"snapshot {snapshot.id}", [])
    assert found.records == retained.total - sum(snapshot.applied.next_offset.values())


def test_without_a_base_nothing_can_be_verified(retained: VerifyScene) -> None:
    (snapshot,) = retained.snapshots.list()
    no_other = "the log is not complete after a snapshot `another` of this state:"
    with pytest.raises(
        Invalid, match=f"^{no_other} begin after another one, `popstream verify --since {snapshot.id}`$"
    ):
        retained.verify(since="another")
    retained.snapshots = type(retained.snapshots)(str(retained.root / "none"))
    with pytest.raises(Invalid, match=f"^{no_other} no other one will do; run `popstream snapshot` now"):
        retained.verify(since="another")
    with pytest.raises(Corrupt, match="does not reach back to its start or to any snapshot"):
        retained.verify()
    retained.first_offset = dict.fromkeys(retained.first_offset, 0)
    with pytest.raises(Invalid, match=f"^{no_other} begin at the start of the log, `popstream verify`$"):
        retained.verify(since="another")


def test_a_wrong_state_is_restored_from_the_snapshot_that_the_verification_began_with(retained: VerifyScene) -> None:
    """Not from a newer one, which may be a snapshot of the wrong state."""
    (snapshot,) = retained.snapshots.list()
    with RocksStore(retained.state) as store:
        key, value = next(iter(store.scan(STATE, b"")))
        store.write_changes([(STATE, key, value + b"!")])
        take_snapshot(store, None, retained.root / "scratch", retained.snapshots)
    *_, advice = retained.verify().differences
    assert f"`popstream restore --snapshot {snapshot.id}`" in advice


def test_the_base_is_the_oldest_snapshot_that_the_log_continues(retained: VerifyScene, tmp_path: Path) -> None:
    (snapshot,) = retained.snapshots.list()
    base = choose_base(retained.applied, retained.log, retained.snapshots, tmp_path / "base", None, [])
    assert base.next_offset == snapshot.applied.next_offset


def test_a_snapshot_deleted_in_the_meantime_is_passed_over(
    retained: VerifyScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = retained.snapshots.fetch
    with RocksStore(retained.state) as store:
        take_snapshot(store, None, tmp_path / "scratch", retained.snapshots)

    def forget_and_fetch(snapshot: Snapshot, folder: Path) -> None:
        folder.mkdir()
        retained.snapshots.prune(SnapshotRetention(newest=1))
        fetch(snapshot, folder)

    monkeypatch.setattr(retained.snapshots, "fetch", forget_and_fetch)
    base = choose_base(retained.applied, retained.log, retained.snapshots, tmp_path / "base", None, [])
    assert base.next_offset == retained.applied.next_offset


def test_a_damaged_snapshot_is_reported_with_another_one(
    retained: VerifyScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_snapshot: Snapshot, _folder: Path) -> None:
        raise Corrupt("it is not what it was")

    monkeypatch.setattr(retained.snapshots, "fetch", fail)
    with pytest.raises(Corrupt, match=r"^it is not what it was: no other one will do; run `popstream snapshot`"):
        choose_base(retained.applied, retained.log, retained.snapshots, tmp_path / "base", None, [])
    with RocksStore(retained.state) as store:
        newer = take_snapshot(store, None, tmp_path / "scratch", retained.snapshots)
    with pytest.raises(
        Corrupt, match=f"^it is not what it was: begin after another one, `popstream verify --since {newer.id}`$"
    ):
        choose_base(retained.applied, retained.log, retained.snapshots, tmp_path / "base", None, [])


def test_a_snapshot_that_shares_the_damaged_file_is_not_proposed(retained: VerifyScene, tmp_path: Path) -> None:
    with RocksStore(retained.state) as store:
        take_snapshot(store, None, tmp_path / "scratch", retained.snapshots)
        newer, older = retained.snapshots.list()
        shared = {file.sha256 for file in older.files if file.path.endswith(".sst")}
        assert all(newer.shares(sha256) for sha256 in shared)
        for sha256 in shared:
            flip_byte(Path(retained.snapshots.url) / "files" / sha256)
    with pytest.raises(Corrupt, match=r"is not what it was: no other one will do; run `popstream snapshot` now"):
        choose_base(retained.applied, retained.log, retained.snapshots, tmp_path / "base", None, [])
    with RocksStore(retained.state) as store:
        take_snapshot(store, None, tmp_path / "scratch", retained.snapshots)
    base = choose_base(retained.applied, retained.log, retained.snapshots, tmp_path / "base", None, [])
    assert base.snapshot == older.id


def test_a_damaged_store_is_refused_before_anything_is_decided_again(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        store.write_changes([(META, APPLIED_KEY, Applied(state_epoch="e", ops_topic="o", ops_topic_id="i").encode())])
        store.copy_to(tmp_path / "flushed")
        require_undamaged(store, "the state", RESTORE)
        victim = max(store.table_files(), key=lambda name: (tmp_path / "state" / name).stat().st_size)
        flip_byte(tmp_path / "state" / victim)
        with pytest.raises(Corrupt, match=f"^the state cannot be verified: state/{victim} is damaged.*restore`$"):
            require_undamaged(store, "the state", RESTORE)


def test_a_lock_is_let_go_of(tmp_path: Path) -> None:
    for _ in range(2):
        with WorkFolder(tmp_path / "verify"):
            pass
