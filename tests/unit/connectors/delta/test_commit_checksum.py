"""Claim: a commit of a job that was changed, emptied or swapped is named by everything that reads the log.

Method: six commits of the writer of a table, with one of them damaged in each way; nothing else has a checksum.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from connectors.delta.log.actions import read_actions
from connectors.delta.log.commits import commit_file, commits_up_from, read_commit
from connectors.delta.log.table_log import read_data_files, read_table_log
from connectors.delta.log.write_commit import commit_info, txn_action, write_commit
from connectors.delta.table_damage import damage_in
from connectors.delta.tables import AUDIT_TABLES, table_path
from popstream.wire.base_errors import Corrupt
from tests.support.written_rows import FIRST, rows_of, writer

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = AUDIT_TABLES["rejected"]
NEWEST = 6
ADVICE = "bring it back from a copy, or run `popstream restore --rebuild rejected`"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    job = writer(tmp_path, TABLE)
    for seq in range(1, NEWEST + 1):
        job.append([rows_of(TABLE, FIRST, seq)], seq)
    return tmp_path


@pytest.fixture
def table(root: Path) -> Path:
    return table_path(root, TABLE.name)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def swap(file: Path) -> None:
    file.write_bytes(file.with_name(f"{2:020d}.json").read_bytes())


def lose_the_last_line(file: Path) -> None:
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


def change_a_digit(file: Path) -> None:
    data = file.read_bytes()
    assert b'\\"numRecords\\":20' in data
    file.write_bytes(data.replace(b'\\"numRecords\\":20', b'\\"numRecords\\":21'))


@pytest.mark.parametrize("harm", [empty, swap, lose_the_last_line, change_a_digit])
@pytest.mark.parametrize("version", [1, 3, NEWEST - 1])
def test_a_damaged_commit_is_named(root: Path, table: Path, version: int, harm: Callable[[Path], None]) -> None:
    file = commit_file(table, version)
    harm(file)
    found = damage_in(table)
    assert found is not None
    errors = [found]
    reads: list[Callable[[], object]] = [
        lambda: read_table_log(table),
        lambda: read_data_files(table),
        lambda: read_commit(table, version),
        lambda: commits_up_from(table, 0),
        lambda: writer(root, TABLE),
    ]
    for read in reads:
        with pytest.raises(Corrupt) as raised:
            read()
        errors.append(raised.value)
    for error in errors:
        assert error.message.startswith(f"the log of rejected is damaged: {file} cannot be read: it")
        assert error.message.endswith(f": {ADVICE}")


def test_a_flipped_bit_of_any_byte_is_noticed_or_changes_nothing(table: Path) -> None:
    """In the name of the checksum itself it changes nothing."""
    file = commit_file(table, 3)
    whole, before = file.read_bytes(), read_actions(file)
    noticed = 0
    for place in range(len(whole)):
        flipped = whole[place] ^ 1 << place % 8
        file.write_bytes(bytes([*whole[:place], flipped, *whole[place + 1 :]]))
        try:
            found = read_actions(file)
        except Corrupt:
            noticed += 1
        else:
            assert found == before, place
    assert len(whole) - noticed <= len('"popstreamChecksum":""')


@pytest.mark.parametrize("count", [1, 2])
def test_commits_that_a_power_loss_has_emptied_stay_readable_under_later_ones(
    root: Path, table: Path, count: int
) -> None:
    """Their rows are still in the outbox, and are written once more."""
    lost = range(NEWEST - count + 1, NEWEST + 1)
    for version in lost:
        empty(commit_file(table, version))
    again = writer(root, TABLE)
    assert again.delivered == NEWEST - count
    again.append([rows_of(TABLE, FIRST, NEWEST)], NEWEST)
    assert damage_in(table) is None
    assert [commit.added_rows for commit in commits_up_from(table, 0)][-count - 1 :] == [*[0] * count, 20]
    assert writer(root, TABLE).delivered == NEWEST
    empty(commit_file(table, NEWEST - count))
    with pytest.raises(Corrupt, match=f"it is empty, and was not when {NEWEST + 1} was made"):
        read_table_log(table)


def test_a_commit_without_a_checksum_does_not_say_what_was_empty_before(table: Path) -> None:
    """One of an earlier version, or of Spark: it may have been made after a power loss."""
    empty(commit_file(table, 3))
    commit_file(table, 4).write_bytes(b'{"commitInfo":{"operation":"WRITE"}}\n')
    log = read_table_log(table)
    assert log is not None
    assert log.version == NEWEST


def test_a_damaged_commit_is_named_and_not_the_empty_one_before_it(table: Path) -> None:
    empty(commit_file(table, 3))
    commit_file(table, 4).write_bytes(b'{"commitInfo":{"popstreamChecksum":"00000000",}}\n')
    with pytest.raises(Corrupt, match=r"0004\.json cannot be read: its checksum differs"):
        read_table_log(table)


def test_the_checksum_is_of_the_version_that_a_commit_gets(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer is faster."""
    link, examined = os.link, list[int]()

    def faster(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        write_commit(table, NEWEST, [commit_info(NEWEST, "WRITE")], lambda _: None, durable=False)
        link(source, target)

    monkeypatch.setattr(os, "link", faster)
    actions = [commit_info(NEWEST, "WRITE"), txn_action("mine", 7)]
    version = write_commit(table, NEWEST, actions, lambda commit: examined.append(commit.version), durable=False)
    assert (version, examined) == (NEWEST + 2, [NEWEST + 1])
    assert [commit.txns for commit in commits_up_from(table, NEWEST)] == [{}, {"mine": 7}]
    assert not list((table / "_delta_log").glob("*.commit"))


def test_other_readers_of_delta_pass_over_it(table: Path) -> None:
    found: list[dict[str, Any]] = DeltaTable(table).history(1)
    assert found[0]["version"] == NEWEST
    assert DeltaTable(table).to_pyarrow_table().num_rows == NEWEST * 20
