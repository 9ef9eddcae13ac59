"""Claim: a snapshot is complete or absent, damage to it is detected, and it stores only files that have changed."""

from __future__ import annotations

import hashlib
import secrets
import threading
from pathlib import Path

import fsspec
import msgspec
import pytest

from broker_state.store.overlay import STATE
from broker_state.store.rocks_store import BUILDER_FAMILIES, META, QUEUES, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.snapshot_retention import SnapshotRetention
from checkpoints.snapshot_store import Snapshot, SnapshotStore
from pipelines.recovery.snapshot_loop import SnapshotLoop
from pipelines.recovery.take_snapshot import take_snapshot
from popstream.wire.base_errors import Corrupt, Invalid, Unavailable
from tests.support.flipped_byte import flip_byte, flipped_bit

NOW_MS = 1_795_262_400_000
HOUR_MS = 3_600_000
NEWEST_TWO = SnapshotRetention(newest=2)


@pytest.fixture(params=["path", "memory"])
def snapshots(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    """A storage at a path, and one in another file system of fsspec."""
    return SnapshotStore(str(tmp_path / "kept") if request.param == "path" else f"memory://{secrets.token_hex(8)}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job" / "state").mkdir(parents=True)
    (tmp_path / "job" / "state" / "1.sst").write_bytes(b"never changes")
    (tmp_path / "job" / "state" / "CURRENT").write_bytes(b"1")
    return tmp_path / "job"


def applied(apply_seq: int) -> Applied:
    return Applied(state_epoch="e", ops_topic="ops", ops_topic_id="id", apply_seq=apply_seq)


def kept_files(snapshots: SnapshotStore) -> int:
    files, root = fsspec.core.url_to_fs(snapshots.url)
    return len(files.ls(f"{root}/files"))


def test_a_snapshot_is_fetched_as_it_was_stored(snapshots: SnapshotStore, folder: Path, tmp_path: Path) -> None:
    taken = snapshots.put(folder, applied(7), NOW_MS)
    assert taken.id == "20261121T120000Z-000000000007"
    assert snapshots.list() == [taken]
    snapshots.fetch(taken, tmp_path / "back")
    assert {path.name: path.read_bytes() for path in (tmp_path / "back" / "state").iterdir()} == {
        "1.sst": b"never changes",
        "CURRENT": b"1",
    }


def test_unchanged_files_are_stored_once(snapshots: SnapshotStore, folder: Path) -> None:
    snapshots.put(folder, applied(7), NOW_MS)
    (folder / "state" / "CURRENT").write_bytes(b"2")
    snapshots.put(folder, applied(8), NOW_MS + 1000)
    assert kept_files(snapshots) == 3
    assert [snapshot.applied.apply_seq for snapshot in snapshots.list()] == [8, 7]


def test_pruning_deletes_old_snapshots_and_their_files(snapshots: SnapshotStore, folder: Path, tmp_path: Path) -> None:
    for number in range(5):
        (folder / "state" / "CURRENT").write_bytes(b"%d" % number)
        snapshots.put(folder, applied(number), NOW_MS + 1000 * number)
    assert snapshots.prune(NEWEST_TWO) == 3
    assert kept_files(snapshots) == 3
    for snapshot in snapshots.list():
        snapshots.fetch(snapshot, tmp_path / snapshot.id)
    assert snapshots.prune(NEWEST_TWO) == 0


@pytest.mark.parametrize("damage", ["flipped", "short", "gone"])
def test_a_damaged_file_is_noticed(folder: Path, tmp_path: Path, damage: str) -> None:
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    taken = snapshots.put(folder, applied(7), NOW_MS)
    victim = tmp_path / "kept" / "files" / taken.files[0].sha256
    if damage == "gone":
        victim.unlink()
    else:
        victim.write_bytes(b"Never changes" if damage == "flipped" else b"never")
    with pytest.raises(
        Corrupt, match=r"lacks state/1\.sst" if damage == "gone" else r"state/1\.sst is not what it was"
    ):
        snapshots.fetch(taken, tmp_path / "back")


def test_a_truncated_file_is_stored_again(folder: Path, tmp_path: Path) -> None:
    """A kill in the middle of an upload leaves such a file: the next snapshot must not reuse it."""
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    taken = snapshots.put(folder, applied(7), NOW_MS)
    (tmp_path / "kept" / "files" / taken.files[0].sha256).write_bytes(b"never")
    snapshots.fetch(snapshots.put(folder, applied(8), NOW_MS), tmp_path / "back")


@pytest.mark.parametrize("reads_all", [True, False])
def test_a_damaged_file_is_stored_again(
    snapshots: SnapshotStore, folder: Path, tmp_path: Path, *, reads_all: bool
) -> None:
    """Otherwise it spoils every snapshot that shares it, this one and those to come."""
    first = snapshots.put(folder, applied(7), NOW_MS)
    files, root = fsspec.core.url_to_fs(snapshots.url)
    shared = next(file for file in first.files if file.path == "state/1.sst")
    files.pipe_file(f"{root}/files/{shared.sha256}", b"Never changes")
    assert first.shares(shared.sha256)
    for turn in range(0 if reads_all else 23):
        snapshots.put(folder, applied(8 + turn), NOW_MS + (turn + 1) * HOUR_MS, reads_all=reads_all)
    last = snapshots.put(folder, applied(50), NOW_MS + (0 if reads_all else 24 * HOUR_MS), reads_all=reads_all)
    for snapshot in (first, last):
        snapshots.fetch(snapshot, tmp_path / snapshot.id)


def test_a_stored_file_is_read_once_a_day(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    for number in range(20):
        (folder / "state" / f"{number}.sst").write_bytes(b"%d" % number)
    files = snapshots.put(folder, applied(1), NOW_MS).files
    read: list[str] = []
    opened = snapshots._files.open
    monkeypatch.setattr(snapshots._files, "open", lambda name, mode: read.append(name) or opened(name, mode))  # type: ignore[func-returns-value]
    for turn in range(1, 97):
        snapshots.put(folder, applied(turn), NOW_MS + turn * HOUR_MS // 4, reads_all=False)
    assert sorted(name.rpartition("/")[2] for name in read if "/files/" in name) == sorted(
        file.sha256 for file in files
    )


def test_a_manifest_with_any_flipped_bit_is_no_snapshot(folder: Path, tmp_path: Path) -> None:
    """A wrong offset in it would look like a log that has lost its end, for which nothing but losses helps."""
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    taken = snapshots.put(folder, applied(7), NOW_MS)
    (manifest,) = (tmp_path / "kept" / "manifests").iterdir()
    whole = manifest.read_bytes()
    for bit in range(len(whole) * 8):
        manifest.write_bytes(flipped_bit(whole, bit))
        assert snapshots.list() == [], f"bit {bit}"
    manifest.write_bytes(whole)
    assert snapshots.list() == [taken]


def test_a_manifest_of_a_later_version_may_have_more_fields(folder: Path, tmp_path: Path) -> None:
    """Its checksum is of what is stored, not of what this version knows of it."""
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    taken = snapshots.put(folder, applied(7), NOW_MS)
    (manifest,) = (tmp_path / "kept" / "manifests").iterdir()
    fields = msgspec.json.decode(manifest.read_bytes())
    fields["applied"]["more"] = [1]
    del fields["checksum"]
    fields["checksum"] = hashlib.sha256(msgspec.json.encode(fields)).hexdigest()
    manifest.write_bytes(msgspec.json.encode(fields))
    assert [snapshot.id for snapshot in snapshots.list()] == [taken.id]


def test_a_manifest_of_the_first_version_has_no_checksum(folder: Path, tmp_path: Path) -> None:
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    taken = snapshots.put(folder, applied(7), NOW_MS)
    (manifest,) = (tmp_path / "kept" / "manifests").iterdir()
    old = msgspec.structs.replace(taken, version=1, checksum="")
    manifest.write_bytes(msgspec.json.encode(old))
    assert snapshots.list() == [old]


@pytest.mark.parametrize("manifest", [b"", b'{"id":"20300101T000000Z-1"', b"[]"])
def test_a_truncated_manifest_is_no_snapshot(folder: Path, tmp_path: Path, manifest: bytes) -> None:
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    taken = snapshots.put(folder, applied(7), NOW_MS)
    (tmp_path / "kept" / "manifests" / "20300101T000000Z-000000000008.json").write_bytes(manifest)
    assert snapshots.list() == [taken]


def test_a_full_or_unknown_storage_is_reported(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="carrier-pigeon"):
        SnapshotStore("carrier-pigeon://roof")
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be kept"):
        SnapshotStore(str(tmp_path / "file")).put(folder, applied(7), NOW_MS)
    assert SnapshotStore(str(tmp_path / "nowhere")).list() == []


def write(store: RocksStore, apply_seq: int) -> None:
    changes = [(STATE, b"%06d" % number, b"%d" % apply_seq) for number in range(1000)]
    store.write_changes([(META, APPLIED_KEY, applied(apply_seq).encode()), *changes])


def test_a_snapshot_of_a_store_in_use_is_consistent(snapshots: SnapshotStore, tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        write(store, 1)
        first = take_snapshot(store, None, tmp_path / "scratch", snapshots)
        write(store, 2)
        second = take_snapshot(store, None, tmp_path / "scratch", snapshots)
        write(store, 3)
    assert list((tmp_path / "scratch").iterdir()) == []
    for taken in (first, second):
        snapshots.fetch(taken, tmp_path / taken.id)
        with RocksStore(tmp_path / taken.id / "state") as back:
            assert {value for _, value in back.scan(STATE, b"")} == {b"%d" % taken.applied.apply_seq}


@pytest.mark.parametrize("kept_before", [False, True])
def test_a_damaged_state_is_refused_and_older_snapshots_stay(tmp_path: Path, *, kept_before: bool) -> None:
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    older: list[Snapshot] = []
    with RocksStore(tmp_path / "state") as store:
        write(store, 1)
        if kept_before:
            older.append(take_snapshot(store, None, tmp_path / "scratch", snapshots))
        else:
            store.copy_to(tmp_path / "flushed")
        victim = store.table_files()[0]
        flip_byte(tmp_path / "state" / victim)
        write(store, 2)
        loop = SnapshotLoop(
            lambda _: take_snapshot(store, None, tmp_path / "scratch", snapshots),
            snapshots,
            interval_s=0,
            retention=SnapshotRetention(newest=1),
            decided=lambda: 2,
            last_done=tmp_path,
        )
        for _ in range(2):
            with pytest.raises(Corrupt, match=rf"no snapshot was taken: state/{victim} is damaged.*popstream restore"):
                loop.take_now()
    assert snapshots.list() == older
    for snapshot in older:
        snapshots.fetch(snapshot, tmp_path / "back")
    assert not list((tmp_path / "scratch").iterdir())


def test_a_damaged_store_of_the_builder_is_refused(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as state, RocksStore(tmp_path / "queues", BUILDER_FAMILIES) as queues:
        write(state, 1)
        queues.write_changes([(QUEUES, b"key", b"value")])
        queues.copy_to(tmp_path / "flushed")
        victim = queues.table_files()[0]
        flip_byte(tmp_path / "queues" / victim)
        with pytest.raises(Corrupt, match=f"queues/{victim} is damaged"):
            take_snapshot(state, queues, tmp_path / "scratch", SnapshotStore(str(tmp_path / "kept")))


@pytest.mark.parametrize("name", ["MANIFEST-*", "CURRENT"])
def test_a_copy_that_does_not_open_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    copy_to = RocksStore.copy_to

    def damaged(store: RocksStore, folder: Path) -> None:
        copy_to(store, folder)
        (victim,) = folder.glob(name)
        flip_byte(victim)

    monkeypatch.setattr(RocksStore, "copy_to", damaged)
    with RocksStore(tmp_path / "state") as store:
        write(store, 1)
        with pytest.raises((Corrupt, Invalid)):
            take_snapshot(store, None, tmp_path / "scratch", SnapshotStore(str(tmp_path / "kept")))
    assert not (tmp_path / "kept").exists()


def test_a_copy_without_the_last_changes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RocksStore(tmp_path / "state") as store:
        write(store, 1)
        store.copy_to(tmp_path / "early")
        write(store, 2)
        monkeypatch.setattr(RocksStore, "copy_to", lambda _store, folder: (tmp_path / "early").rename(folder))
        with pytest.raises(Corrupt, match="the copy of state lacks the last changes: its log is damaged"):
            take_snapshot(store, None, tmp_path / "scratch", SnapshotStore(str(tmp_path / "kept")))


def test_an_empty_state_cannot_be_stored(tmp_path: Path) -> None:
    with (
        RocksStore(tmp_path / "state") as store,
        pytest.raises(Invalid, match="decided nothing yet"),
    ):
        take_snapshot(store, None, tmp_path / "scratch", SnapshotStore(str(tmp_path / "kept")))
    assert not (tmp_path / "kept").exists()


def test_the_loop_takes_snapshots_at_intervals_and_continues_after_failures(tmp_path: Path, folder: Path) -> None:
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    outcomes = iter([None, "full", None])
    taken: list[Snapshot] = []

    def take(_: object) -> Snapshot:
        if next(outcomes, None) is not None:
            message = "the disk is full"
            raise Unavailable(message)
        taken.append(snapshots.put(folder, applied(len(taken)), NOW_MS + len(taken) * 1000))
        return taken[-1]

    loop = SnapshotLoop(take, snapshots, interval_s=0.01, retention=NEWEST_TWO, decided=lambda: 99, last_done=tmp_path)
    loop.start()
    while len(taken) < 5:
        pass
    loop.stop()
    assert loop.last_failure is None
    assert len(snapshots.list()) <= 3, "one that is taken while the loop ends deletes no others"


def test_the_loop_takes_no_snapshot_when_nothing_was_decided(tmp_path: Path, folder: Path) -> None:
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    taken: list[Snapshot] = []

    def take(_: object) -> Snapshot:
        taken.append(snapshots.put(folder, applied(7), NOW_MS))
        return taken[-1]

    asked: list[int] = []
    decided = lambda: asked.append(7) or 7  # type: ignore[func-returns-value]  # noqa: E731
    loop = SnapshotLoop(take, snapshots, interval_s=0.005, retention=NEWEST_TWO, decided=decided, last_done=tmp_path)
    loop.start()
    while len(asked) < 5:
        pass
    loop.stop()
    assert len(taken) == 1


def test_a_snapshot_deleted_during_a_listing_does_not_hide_the_others(
    snapshots: SnapshotStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [snapshots.put(folder, applied(number), NOW_MS + number * 1000) for number in range(3)]
    read = snapshots._files.cat_file

    def forget_and_read(name: str) -> bytes:
        if taken[1].id in name:
            raise FileNotFoundError(name)
        content: bytes = read(name)
        return content

    monkeypatch.setattr(snapshots._files, "cat_file", forget_and_read)
    assert snapshots.list() == [taken[2], taken[0]]


def test_the_manifest_is_plain_json(snapshots: SnapshotStore, folder: Path) -> None:
    taken = snapshots.put(folder, applied(7), NOW_MS)
    assert msgspec.json.decode(msgspec.json.encode(taken))["applied"]["apply_seq"] == 7


def test_jobs_of_one_process_take_snapshots_one_after_the_other(tmp_path: Path, folder: Path) -> None:
    """The thread of a failed job still stores its snapshot while the next job takes one."""
    is_taking, may_end = threading.Event(), threading.Event()
    places: list[str] = []

    def loop_of(name: str, apply_seq: int) -> SnapshotLoop:
        snapshots = SnapshotStore(str(tmp_path / "kept"))

        def take(_: object) -> Snapshot:
            places.append(f"{name} begins")
            if name == "old":
                is_taking.set()
                assert may_end.wait(60)
            taken = snapshots.put(folder, applied(apply_seq), NOW_MS + apply_seq * 1000)
            places.append(f"{name} ends")
            return taken

        return SnapshotLoop(
            take, snapshots, interval_s=0, retention=NEWEST_TWO, decided=lambda: apply_seq, last_done=tmp_path
        )

    old, new = loop_of("old", 1), loop_of("new", 2)
    threads = [threading.Thread(target=loop.take_now) for loop in (old, new)]
    threads[0].start()
    assert is_taking.wait(60)
    threads[1].start()
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert places == ["old begins", "old ends", "new begins", "new ends"]


def test_a_loop_that_has_ended_deletes_no_snapshots(tmp_path: Path, folder: Path) -> None:
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    for number in range(4):
        snapshots.put(folder, applied(number), NOW_MS + number * 1000)
    loop = SnapshotLoop(
        lambda _: snapshots.put(folder, applied(9), NOW_MS + 9_000),
        snapshots,
        interval_s=0,
        retention=NEWEST_TWO,
        decided=lambda: 9,
        last_done=tmp_path,
    )
    loop.stop()
    loop.take_now()
    assert len(snapshots.list()) == 5


@pytest.mark.parametrize("path", ["../../evil", "/evil", "state/../../evil"])
def test_a_manifest_that_names_a_place_outside_writes_nothing(folder: Path, tmp_path: Path, path: str) -> None:
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    taken = snapshots.put(folder, applied(7), NOW_MS)
    forged = msgspec.structs.replace(taken, files=[msgspec.structs.replace(taken.files[0], path=path)])
    with pytest.raises(Corrupt, match="outside of the snapshot"):
        snapshots.fetch(forged, tmp_path / "a" / "b" / "back")
    assert not (tmp_path / "a").exists()
