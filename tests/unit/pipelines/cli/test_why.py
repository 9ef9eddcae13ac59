"""`popstream why` as a user runs it, on tables without a job."""

from __future__ import annotations

import dataclasses
import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from broker_state.consume_queue import Unit
from broker_state.store.rocks_store import RocksStore
from connectors.delta.duckdb_tables import DuckDbTables
from connectors.delta.retention import delete_before
from connectors.delta.schemas import arrow_schema
from connectors.delta.snapshot import Snapshot, open_snapshot
from connectors.delta.tables import CONSUME_QUEUE, TABLES
from pipelines.build_consume_queue.queue_view import ConsumeQueueView, FoundMessage, FoundUnit
from pipelines.cli.app import app
from pipelines.explain import message_rows
from pipelines.explain.message_rows import read_message_rows
from popstream.wire.command import Declare, Dispatch, ResetOffset, WrittenRange
from tests.support.delta_files import append_audit_rows, append_rows, create_table
from tests.support.kernel_history import NOON_MS, KernelHistory
from tests.support.unit_rows import unit_row

if TYPE_CHECKING:
    from typer.testing import Result


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)


def slow_handler() -> KernelHistory:
    history = KernelHistory()
    first = history.pop(1, "slow")
    second = history.pop(31, "b")
    history.ack(33.1, "slow", first)
    history.ack(34, "b", second)
    return history


def written(root: Path, history: KernelHistory, *, units: int = 10) -> Path:
    """The tables of a history, with a file for each of its rows, so that a look-up can leave files out."""
    for name, rows in history.tables().items():
        create_table(root, name)
        for number, row in enumerate(rows):
            append_audit_rows(root, name, [row], number)
    create_table(root, "consume_queue")
    found = [unit_row("orders", offset, store_time_ms=NOON_MS - 500) for offset in range(units)]
    append_rows(root, "consume_queue", pa.Table.from_pylist(found, schema=arrow_schema(CONSUME_QUEUE)))
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written(tmp_path / "job" / "delta", slow_handler())
    return tmp_path / "job"


def why(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["why", *arguments, "--folder", str(folder)])


def test_the_life_of_a_message(folder: Path) -> None:
    done = why(folder, "orders/0/0")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "  11:59:59.500  written by its producer: 100 bytes"
    assert done.stdout.splitlines()[-1] == (
        "  => delivered twice: the first lease of 30 s expired 2.1 s before its ack; its handler took 32.1 s."
        " Done by b at 12:00:34.000, 34.5 s after it was written."
    )


def test_it_is_data_and_a_picture(folder: Path, tmp_path: Path) -> None:
    plot = tmp_path / "life.svg"
    done = why(folder, "orders/0/0", "--group", "g", "--json", "--plot", str(plot))
    assert done.stderr == f"popstream: the time line is in {plot}\n"
    document = msgspec.json.decode(done.stdout)
    assert [event["kind"] for event in document["groups"][0]["events"]] == [
        *("leased", "expired", "leased", "refused", "acked", "passed")
    ]
    assert plot.read_text().startswith("<svg ")


def test_a_message_that_no_group_has_read(folder: Path) -> None:
    done = why(folder, "orders/0/7")
    assert done.exit_code == 0
    assert "poppable" in done.stdout
    assert why(folder, "orders/0/7", "--group", "g").stdout.splitlines()[-1] == (
        "  => Not delivered yet: no pop of the group has come to it."
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("orders/0/99",), "orders/0 has no offset 99 yet: it is written up to 9"),
        (("orders/1/0",), "have no queue orders/1"),
        (("nowhere/0/0",), "have no queue nowhere/0"),
        (("orders/0/0", "--group", "nobody"), "the group nobody has never read orders/0; groups that have: g"),
        (("orders/0",), "name the message by TOPIC/QUEUE/OFFSET"),
        (("orders/0/-1",), "is not a place"),
        (("orders/0/1/2",), "is not a place"),
        (("orders/0/99999999999999999999",), "is not a place"),
        (("orders/0/" + "9" * 5_000,), "is not a place"),
        (("orders/0/0", "--lane", "g"), "name the queue of the lane by TOPIC/QUEUE"),
        (("orders/0", "--lane", "g", "--plot", "x"), "--plot cannot be used with --lane"),
        (("orders/0/0", "--message-id", "a-1"), "by its offset or by --message-id, not by both"),
    ],
)
def test_what_there_is_not_to_tell(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    done = why(folder, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_file_of_zeros_says_how_to_repair_the_table(folder: Path) -> None:
    """Its size is right, and nobody has looked into it before DuckDB does."""
    for file in (folder / "delta" / "deliveries").rglob("*.parquet"):
        if "_delta_log" not in file.parts:
            file.write_bytes(bytes(file.stat().st_size))
    done = why(folder, "orders/0/0")
    assert done.exit_code == 4
    assert "a data file of deliveries is damaged" in done.stderr


def test_a_group_that_began_behind_the_message(tmp_path: Path) -> None:
    history = KernelHistory()
    history.do(1, ResetOffset(v=1, topic="orders", queue_id=0, group="g", queue_offset=5))
    history.ack(3, "a", history.pop(2, "a"), offset=5)
    written(tmp_path / "job" / "delta", history)
    assert (
        why(tmp_path / "job", "orders/0/2", "--group", "g")
        .stdout.splitlines()[-1]
        .startswith("  => Not delivered, and done")
    )


def test_a_history_that_was_cut_says_from_when_it_is_known(tmp_path: Path) -> None:
    history = KernelHistory()
    history.ack(2, "a", history.pop(1, "a"))
    history.ack(4, "a", history.pop(3, "a"), offset=1)
    for rows in (history.operations, history.deliveries, history.commit_positions):
        rows[:] = [row for row in rows if row.now_ms >= NOON_MS + 3_000]  # type: ignore[misc]
    written(tmp_path / "job" / "delta", history, units=0)
    done = why(tmp_path / "job", "orders/0/0", "--group", "g")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "the tables know orders/0 of the group g only from 2026-11-21 12:00:04 UTC, offset 1, on" in done.stderr


def test_a_history_that_retention_has_cut_says_so(tmp_path: Path) -> None:
    """A lease of the day before ends after the cut, and another message has nothing left."""
    history = KernelHistory()
    night = history.pop(43_000, "slow", invisible_s=3_600)
    history.ack(43_500, "slow", night)  # 00:05 of the next day
    root = written(tmp_path / "job" / "delta", history, units=0)
    for name in ("deliveries", "operations"):
        assert delete_before(root, TABLES[name], date(2026, 11, 22)).rows
    done = why(tmp_path / "job", "orders/0/0")
    assert done.exit_code == 0, done.stderr
    assert "acked by slow" in done.stdout
    assert "leased to" not in done.stdout
    last = "retention has deleted operations before 2026-11-22 and deliveries before 2026-11-22 (UTC)."
    assert done.stdout.splitlines()[-1] == f"Perhaps not the whole story: {last}"
    done = why(tmp_path / "job", "orders/0/5")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("popstream: of orders/0/5 nothing is left: retention has deleted operations before")


def test_no_tables_is_one_line(tmp_path: Path) -> None:
    done = why(tmp_path / "job", "orders/0/0")
    assert (done.exit_code, "there are no tables in" in done.stderr) == (2, True)


def test_a_look_up_opens_only_files_that_may_have_the_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def counted(snapshots: list[Snapshot], **options: Any) -> DuckDbTables:
        opened.extend(len(snapshot.files) for snapshot in snapshots)
        return DuckDbTables(snapshots, **options)

    monkeypatch.setattr(message_rows, "DuckDbTables", counted)
    rows = read_message_rows(folder / "delta", "orders", 0, 7)
    # Of message 7 there are its unit, its dispatch, and the move of the queue's commit position.
    assert (rows.unit is not None, len(rows.operations), len(rows.deliveries), len(rows.positions)) == (True, 1, 0, 1)
    assert opened == [1, 0, 1, 1]


def test_a_table_of_an_older_version_lacks_columns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_duplicates(path: Path) -> Snapshot:
        snapshot = open_snapshot(path)
        kept = {name: kind for name, kind in snapshot.columns.items() if name not in {"duplicate_of", "client_id"}}
        return dataclasses.replace(snapshot, columns=kept)

    monkeypatch.setattr(message_rows, "open_snapshot", without_duplicates)
    done = why(folder, "orders/0/0")
    assert done.exit_code == 0
    assert "leased to a client without an id" in done.stdout


def test_a_recreated_topic_has_the_story_of_its_present_message(tmp_path: Path) -> None:
    history = KernelHistory()
    history.ack(2, "a", history.pop(1, "a"))
    history.do(10, Declare(v=1, topic="orders", queue_id=0, topic_id="second"))
    history.do(11, Dispatch(v=1, topic="orders", queue_id=0, ranges=[WrittenRange(0, 9)]))
    history.pop(12, "b")
    root = written(tmp_path / "job" / "delta", history)
    again = unit_row("orders", 0, topic_id="second", store_time_ms=NOON_MS + 10_500, build_seq=2)
    append_rows(root, "consume_queue", pa.Table.from_pylist([again], schema=arrow_schema(CONSUME_QUEUE)))
    document = msgspec.json.decode(why(tmp_path / "job", "orders/0/0", "--json").stdout)
    assert document["unit"]["topic_id"] == "second"
    assert [event["kind"] for event in document["groups"][0]["events"]] == ["leased"]


def test_a_lane_without_a_job_is_told_from_the_stored_state(tmp_path: Path) -> None:
    history = KernelHistory()
    history.pop(1, "a", 3)
    written(tmp_path / "job" / "delta", history)
    with RocksStore(tmp_path / "job" / "state") as store:
        store.write(history.overlay)
    done = why(tmp_path / "job", "orders/0", "--lane", "g")
    assert done.exit_code == 0
    assert done.stderr == f"popstream: no job runs in {tmp_path / 'job'}; this is the stored state\n"
    assert "its commit offset waits for message 0: delivered once. a held it until 12:00:31.000" in done.stdout
    assert "nobody pops: 0 returned and 7 new offsets are ready, and no pop waits for them" in done.stdout
    done = why(tmp_path / "job", "orders/0", "--lane", "other")
    assert (done.exit_code, done.stderr) == (2, "popstream: the group other has no lane in orders/0\n")


def found(queue_id: int, offset: int, *inside: str) -> ConsumeQueueView:
    """What a job says of a unit of three messages: the ids of those that it found inside."""
    unit = Unit(queue_offset=offset, size_bytes=9, store_time_ms=NOON_MS, message_base=offset, inner_count=3)
    messages = [FoundMessage(number, number, name, None, 1) for number, name in enumerate(inside, 1)]
    return ConsumeQueueView(
        topic="orders",
        queue_id=queue_id,
        topic_id="t",
        queue_type="batch",
        start_offset=0,
        end_offset=10,
        start_message_base=0,
        end_message_base=30,
        unit_count=10,
        message_count=30,
        hole_count=0,
        holes=[],
        commit_position=10,
        log_end=10,
        found=[FoundUnit("with the key", unit, "", messages)],
    )


def test_a_message_inside_a_unit_is_found_by_its_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views = [found(3, 5, "else"), found(0, 0, "else", "a1b2-7")]
    monkeypatch.setattr("pipelines.cli.state.queue.queues_of", lambda *_: (views, True))
    done = why(folder, "orders", "--message-id", "a1b2-7")
    assert done.exit_code == 0
    assert done.stderr == "popstream: a1b2-7 is message 2 of the 3 in the unit at offset 0 of orders/0\n"
    assert done.stdout.startswith("orders/0/0, ")


def test_without_a_job_the_unit_is_known_and_not_the_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.cli.state.queue.queues_of", lambda *_: ([found(0, 0)], False))
    done = why(folder, "orders/0", "--message-id", "a1b2-7")
    assert done.stderr == "popstream: a1b2-7 is in the unit at offset 0 of orders/0\n"


def test_an_id_that_no_unit_carries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.cli.state.queue.queues_of", lambda *_: ([found(0, 0, "else")], True))
    done = why(folder, "orders", "--message-id", "a1b2-7")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no unit of orders carries a message a1b2-7 inside" in done.stderr


def test_tables_at_a_url_are_copied_first(folder: Path) -> None:
    url = f"file://{folder / 'delta'}"
    told = CliRunner().invoke(app, ["why", "orders/0/0", "--tables", url])
    assert (told.exit_code, "leased to slow" in told.stdout) == (0, True), told.stderr
    counted = CliRunner().invoke(app, ["query", "select count(*) from consume_queue", "--csv", "--tables", url])
    assert counted.stdout.splitlines()[1] == "10"
    for wrong, code, why in (
        ("nothing://bucket", 2, "tables cannot be read at nothing://bucket"),
        (f"file://{folder / 'nowhere'}", 2, "there are no tables in file://"),
    ):
        refused = CliRunner().invoke(app, ["query", "select 1", "--tables", wrong])
        assert (refused.exit_code, why in refused.stderr) == (code, True), refused.stderr
