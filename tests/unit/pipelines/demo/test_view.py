"""The progress that is printed, the cast of processes, and what the demo does to its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.control.lane_views import LaneView, QueueView
from pipelines.control.messages import Status
from pipelines.control.metrics import Totals
from pipelines.demo import run_demo
from pipelines.demo.message_source import MessageSource
from pipelines.demo.tasks import ROLES, group_names, limited_group, tasks_of
from pipelines.demo.view import View, as_line
from popstream.kafka_connection import KafkaConnection


def lane(group: str, lag: int) -> LaneView:
    return LaneView(
        group,
        commit_offset=5 - lag,
        next_offset=5,
        lag=lag,
        leased=1,
        available=0,
        parked=0,
        acked=5 - lag,
        dead_lettered=1,
        epoch=1,
        orderly=False,
    )


def queue(queue_id: int, lags: dict[str, int]) -> QueueView:
    lanes = [lane(group, lag) for group, lag in lags.items()]
    return QueueView("t", queue_id, "id", "simple", 0, 0, commit_position=5, holes=0, lanes=lanes)


STATUS = Status(
    running=True,
    folder="f",
    apply_seq=1,
    up_s=12.3,
    operations_per_s=456.7,
    totals=Totals(refused=5, rejected=6, last_micro_batch_ms={"decide": 70.0, "write": 8.9}),
    queues=[queue(0, {"billing": 1, "search": 0}), queue(1, {"billing": 2, "search": 4})],
)


def test_a_line_has_every_number() -> None:
    assert as_line(STATUS) == (
        "   12 s  ops/s 457  sent 10  in flight 4  dead letters 4  refused 5  rejected 6  micro-batch ms 79"
        "  lag: billing 3, search 4"
    )


def test_lines_come_seldom_and_not_on_standard_output_when_that_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    view = View(json_output=True)
    view.say("hello")
    view.show(as_line(STATUS))
    view.show(as_line(STATUS))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("ops/s") == 1
    assert "hello" in captured.err


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_role_is_played_however_many_groups_there_are(count: int) -> None:
    groups = group_names(count)
    assert len(set(groups)) == count
    common = {
        "connection": KafkaConnection("s"),
        "prefix": "p",
        "topic": "t",
        "queues": 8,
        "ops_partitions": 4,
        "source": MessageSource(count=1),
        "folder": "f",
    }
    tasks = tasks_of(groups, common)
    assert len({task.name for task in tasks}) == len(tasks)
    assert {task.role for task in tasks} == {*ROLES}
    for group in groups:
        of_group = [task for task in tasks if task.group == group]
        assert any(task.role == "steady" for task in of_group)
        assert {task.releases_poison for task in of_group} == {group == limited_group(groups)}


def test_only_the_demo_s_own_folder_is_emptied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beside = tmp_path / "var" / "jars"
    old = tmp_path / "var" / "demo" / "job" / "state"
    for folder in (beside, old):
        folder.mkdir(parents=True)
    (tmp_path / "var" / "demo" / "summary.json").write_text("{}")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (tmp_path / "var" / "demo" / "link").symlink_to(outside)
    # There are no jars, so the host does not start.
    assert run_demo(messages_count=1, var=tmp_path / "var") == 1
    assert "the demo has failed" in capsys.readouterr().err
    assert beside.exists()
    assert (outside / "kept").exists()
    assert {entry.name for entry in (tmp_path / "var" / "demo").iterdir()} <= {"lock", "job"}
    assert not old.exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(messages_file=tmp_path / "missing", var=tmp_path) == 1
    assert "missing cannot be read" in capsys.readouterr().err
