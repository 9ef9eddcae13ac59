"""Claim: a reader of a replica sees one whole version of each table after the other, whenever the job dies.

Method: tables as the job writes them, and a replica in a folder or in a memory that stands for an object store.
"""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from deltalake import DeltaTable

from connectors.delta.compaction import compact
from connectors.delta.log.commits import commit_file
from connectors.delta.log.table_log import newest_version, read_data_files
from connectors.delta.retention import delete_before
from connectors.delta.tables import DELIVERIES
from connectors.local_servers.loopback import free_port
from pipelines.process import table_replica
from pipelines.process.table_replica import LAST_CHECKPOINT, LOG
from pipelines.process.tables_replica import TablesReplica
from popstream.wire.base_errors import Fenced, Invalid, Unavailable
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import append_audit_rows, create_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DAY_MS = 86_400_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create_table(tmp_path / "delta", "deliveries")
    append(tmp_path / "delta", 3)
    return tmp_path / "delta"


@pytest.fixture(params=["folder", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "replica")
        return
    memory = fsspec.filesystem("memory")
    yield "memory://replica"
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def replica_of(root: Path, place: str, require_ownership: Callable[[], None] = lambda: None) -> TablesReplica:
    return TablesReplica(root, place, lambda table: DeltaTable(table).create_checkpoint(), require_ownership)


def append(root: Path, count: int = 1, day: int = 0) -> None:
    """Append `count` commits of two rows."""
    for _ in range(count):
        seq = newest_version(root / "deliveries")
        append_audit_rows(root, "deliveries", [delivery(seq, n, NOW_MS + day * DAY_MS) for n in range(2)])


def in_folder(place: str, tmp_path: Path) -> Path:
    """The replica where every reader can read it."""
    if not place.startswith("memory"):
        return tmp_path / "replica" / "deliveries"
    files, base = fsspec.core.url_to_fs(place)
    target = tmp_path / "read" / str(len(list(tmp_path.rglob("*"))))
    files.get(f"{base}/deliveries/", f"{target}/", recursive=True)
    return target


def rows(table: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=repr)


def require_same(root: Path, place: str, tmp_path: Path) -> None:
    there = in_folder(place, tmp_path)
    assert newest_version(there) == newest_version(root / "deliveries")
    assert rows(there) == rows(root / "deliveries")


def checkpoint(root: Path) -> None:
    DeltaTable(root / "deliveries").create_checkpoint()


def delete_commits(root: Path, upto: int) -> None:
    """As Delta does a week after a checkpoint."""
    for version in range(upto + 1):
        commit_file(root / "deliveries", version).unlink()


def data_files(table: Path) -> set[str]:
    return {str(file.relative_to(table)) for file in table.rglob("*.parquet") if LOG not in file.parts}


def delete_unused(root: Path) -> None:
    """As VACUUM does a week after a compaction."""
    found = read_data_files(root / "deliveries")
    assert found is not None
    for path in data_files(root / "deliveries") - {file.relative_path for file in found.files}:
        (root / "deliveries" / path).unlink()


def a_week_after_compaction(root: Path, *, appended: int, deleted_upto: int) -> None:
    """With commits after the checkpoint that followed it; those before it, and the files that it joined, are gone."""
    compact(root, DELIVERIES)
    checkpoint(root)
    append(root, appended)
    delete_commits(root, deleted_upto)
    delete_unused(root)


STEPS: dict[str, Callable[[Path], object]] = {
    "appended": lambda root: append(root, 3),
    "compacted": lambda root: compact(root, DELIVERIES),
    "with a checkpoint": checkpoint,
    "with another date": lambda root: append(root, day=3),
    "without old dates": lambda root: delete_before(root, DELIVERIES, dt.date(2026, 11, 23)),
    "appended again": append,
    "with another checkpoint": checkpoint,
}


def test_it_has_each_version_that_the_tables_have(root: Path, place: str, tmp_path: Path) -> None:
    replica = replica_of(root, place)
    for step in STEPS.values():
        step(root)
        replica.catch_up()
        require_same(root, place, tmp_path)
        append(root, day=1)
        replica_of(root, place).catch_up()  # that of the next start
        require_same(root, place, tmp_path)
        replica = replica_of(root, place)
    last = in_folder(place, tmp_path) / LOG / LAST_CHECKPOINT
    assert last.read_bytes() == (root / "deliveries" / LOG / LAST_CHECKPOINT).read_bytes()


@pytest.mark.parametrize("is_vacuumed", [False, True])
def test_wherever_it_ends_there_is_a_whole_version(
    root: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_vacuumed: bool
) -> None:
    """After any number of copied files, one of them in the middle; also if some that commits name are gone."""
    replica_of(root, place).catch_up()
    before = newest_version(root / "deliveries")
    had = rows(root / "deliveries")
    for step in STEPS.values():
        step(root)
    if is_vacuumed:
        delete_unused(root)
    files, _ = fsspec.core.url_to_fs(place)
    put_file, left = files.put_file, 0

    def dying(source: str, target: str, **more: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            if not place.startswith("memory"):
                put_file(source, target)
                with open(target, "r+b") as begun:  # noqa: PTH123 - as fsspec names it
                    begun.truncate(10)
            message = "the machine is gone"
            raise OSError(message)
        put_file(source, target, **more)

    monkeypatch.setattr(type(files), "put_file", lambda _, *arguments, **more: dying(*arguments, **more))
    deaths = 0
    for deaths in itertools.count():
        left = deaths
        try:
            replica_of(root, place).catch_up()
            break
        except Unavailable:
            pass
        there = in_folder(place, tmp_path)
        version = DeltaTable(there).version()
        assert version >= before
        table = DeltaTable(root / "deliveries", version=version)
        assert rows(there) == (had if version == before else sorted(table.to_pyarrow_table().to_pylist(), key=repr))
    assert deaths >= 3, "each death leaves a little more"
    require_same(root, place, tmp_path)


@pytest.mark.parametrize("had", [0, 4])
def test_commits_that_are_deleted_before_they_are_copied_are_not_needed(
    had: int, root: Path, place: str, tmp_path: Path
) -> None:
    """As after a week without the place, or where a replica begins later."""
    if had:
        replica_of(root, place).catch_up()
    append(root, 4)
    a_week_after_compaction(root, appended=2, deleted_upto=6)
    replica_of(root, place).catch_up()
    require_same(root, place, tmp_path)
    append(root)
    replica_of(root, place).catch_up()
    require_same(root, place, tmp_path)


def test_what_is_deleted_here_is_deleted_there_within_the_hour(
    root: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = replica_of(root, place)
    replica.catch_up()
    a_week_after_compaction(root, appended=2, deleted_upto=2)
    replica.catch_up()
    assert len(data_files(in_folder(place, tmp_path))) > len(data_files(root / "deliveries"))
    replica_of(root, place).catch_up()  # of the next start
    assert data_files(in_folder(place, tmp_path)) == data_files(root / "deliveries")
    compact(root, DELIVERIES)
    checkpoint(root)
    delete_unused(root)
    replica.catch_up()
    assert len(data_files(in_folder(place, tmp_path))) > len(data_files(root / "deliveries"))
    monkeypatch.setattr(table_replica, "SWEEP_S", 0.0)
    replica.catch_up()
    there = in_folder(place, tmp_path)
    assert data_files(there) == data_files(root / "deliveries")
    logs = [{file.name for file in (table / LOG).glob("*.json")} for table in (there, root / "deliveries")]
    assert logs[0] == logs[1]
    require_same(root, place, tmp_path)


def test_a_file_that_is_lost_here_is_not_deleted_there(
    root: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = replica_of(root, place)
    replica.catch_up()
    before = rows(root / "deliveries")
    for path in data_files(root / "deliveries"):
        (root / "deliveries" / path).unlink()
    monkeypatch.setattr(table_replica, "SWEEP_S", 0.0)
    replica.catch_up()
    assert rows(in_folder(place, tmp_path)) == before


def test_a_commit_whose_file_is_lost_is_not_copied(root: Path, place: str, tmp_path: Path) -> None:
    replica = replica_of(root, place)
    replica.catch_up()
    version, there = newest_version(root / "deliveries"), data_files(root / "deliveries")
    append(root)
    (lost,) = data_files(root / "deliveries") - there
    (root / "deliveries" / lost).unlink()
    with pytest.raises(Unavailable, match=r"is missing: bring it back .* `popstream restore --rebuild deliveries`"):
        replica.catch_up()
    assert newest_version(in_folder(place, tmp_path)) == version


def test_a_place_with_other_files_is_refused_and_left_alone(root: Path, place: str, tmp_path: Path) -> None:
    files, base = fsspec.core.url_to_fs(place)
    files.makedirs(f"{base}/deliveries/my", exist_ok=True)
    files.pipe_file(f"{base}/deliveries/my/data.parquet", b"mine")
    with pytest.raises(Unavailable, match="/deliveries has other files: delete that folder, or name another place"):
        replica_of(root, place).catch_up()
    assert [file.name for file in in_folder(place, tmp_path).rglob("*") if file.is_file()] == ["data.parquet"]


def test_tables_that_are_gone_are_no_reason_to_delete_their_replica(
    root: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a volume that is not mounted any more."""
    replica = replica_of(root, place)
    replica.catch_up()
    before = rows(root / "deliveries")
    monkeypatch.setattr(table_replica, "SWEEP_S", 0.0)
    shutil.rmtree(root / "deliveries")
    with pytest.raises(Unavailable, match="has no version 3 any more: is its volume mounted"):
        replica.catch_up()
    assert rows(in_folder(place, tmp_path)) == before
    assert replica.lag_s >= 0


def test_a_job_goes_on_with_a_checkpoint_after_a_week_without_the_place(root: Path, place: str, tmp_path: Path) -> None:
    replica = replica_of(root, place)
    replica.catch_up()
    append(root, 4)
    a_week_after_compaction(root, appended=1, deleted_upto=6)
    replica.catch_up()
    require_same(root, place, tmp_path)


@pytest.mark.parametrize("more", [0, 2])
def test_the_replica_of_other_tables_is_refused(more: int, root: Path, place: str, tmp_path: Path) -> None:
    """One with fewer commits than the tables, or with more."""
    create_table(tmp_path / "other", "deliveries")
    append(tmp_path / "other", 2 + more)
    replica_of(tmp_path / "other", place).catch_up()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"/deliveries is the replica of another table: .* `tables_replica`"):
            replica_of(root, place).catch_up()
    assert rows(in_folder(place, tmp_path)) == rows(tmp_path / "other" / "deliveries")


def test_the_beginning_of_a_commit_is_replaced(root: Path, tmp_path: Path) -> None:
    """As a machine that has lost its power leaves it."""
    place = str(tmp_path / "replica")
    replica_of(root, place).catch_up()
    for size in (0, 20):
        newest = commit_file(tmp_path / "replica" / "deliveries", newest_version(root / "deliveries"))
        newest.write_bytes(newest.read_bytes()[:size])
        replica_of(root, place).catch_up()
        require_same(root, place, tmp_path)


def test_a_job_that_has_lost_its_prefix_changes_nothing_more(
    root: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_replica, "SWEEP_S", 0.0)
    replica_of(root, place).catch_up()
    compact(root, DELIVERIES)
    delete_unused(root)

    def fenced() -> None:
        message = "another job has taken the prefix"
        raise Fenced(message)

    before = sorted(in_folder(place, tmp_path).rglob("*.*"))
    with pytest.raises(Fenced):
        replica_of(root, place, fenced).catch_up()
    assert [file.name for file in sorted(in_folder(place, tmp_path).rglob("*.*"))] == [file.name for file in before]


def test_one_that_is_given_up_copies_nothing_more(root: Path, place: str, tmp_path: Path) -> None:
    replica = replica_of(root, place)
    replica.catch_up()
    version = newest_version(root / "deliveries")
    append(root)
    replica.give_up()
    with pytest.raises(Unavailable, match="the job stops"):
        replica.catch_up()
    assert newest_version(in_folder(place, tmp_path)) == version


def test_a_place_that_is_unknown_or_that_of_the_tables_is_refused_at_once(root: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="tables cannot be copied to nowhere://x"):
        replica_of(root, "nowhere://x")
    (tmp_path / "link").symlink_to(root)
    for place in (root, root / "deliveries", root.parent, tmp_path / "link"):
        with pytest.raises(Invalid, match="is the folder of the tables, or one in or around it"):
            replica_of(root, str(place))


def test_a_place_that_does_not_answer_is_told_without_its_password(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="deliveries cannot be copied to"):
        replica_of(root, str(tmp_path / "file" / "below")).catch_up()
    replica = replica_of(root, f"ftp://me:secret@127.0.0.1:{free_port()}/tables")
    with pytest.raises(Unavailable, match="deliveries cannot be copied to ftp://127") as raised:
        replica.catch_up()
    assert "secret" not in str(raised.value)


def test_the_lag_begins_with_the_last_time_that_all_was_there(root: Path, place: str) -> None:
    replica = replica_of(root, place)
    assert replica.lag_s >= 0
    replica.catch_up()
    assert 0 <= replica.lag_s < 60
