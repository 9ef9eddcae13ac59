"""Journals are read back as they were written; a killed writer may leave half a line, nobody else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pipelines.demo.journal import Acked, Changed, Event, Journal, Opened, Planted, Popped, read_journal

OPENED = Opened("billing-steady-1", "steady", "billing")
EVENTS: list[Event] = [
    Popped(
        queue_id=1, op_id="a", pop_time_ms=5, next_visible_time_ms=9, ranges=[(0, 1, 1)], hashes="00" * 16, unread=1
    ),
    Acked(queue_id=1, runs=[(0, 0, "OK", True)]),
    Changed(queue_id=1, invisible_time_ms=4, next_visible_time_ms=12, runs=[(1, 1, "STALE_HANDLE", False)]),
    Planted("empty", 3, 17, "EMPTY", sha256="ab", value_bytes=0),
]


def write(path: Path) -> None:
    with Journal(path, OPENED) as journal:
        for event in EVENTS:
            journal.write(event)


def test_events_come_back(tmp_path: Path) -> None:
    write(tmp_path / "sub" / "j.jsonl")
    worker = read_journal(tmp_path / "sub" / "j.jsonl")
    assert (worker.name, worker.role, worker.group, worker.was_killed) == (*msgspec.structs.astuple(OPENED), False)
    assert worker.events == EVENTS


def test_an_event_is_out_of_the_process_when_write_returns(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", OPENED) as journal:
        journal.write(EVENTS[0])
        assert read_journal(tmp_path / "j").events == EVENTS[:1]


def test_half_a_line_is_left_out_only_when_the_writer_was_killed(tmp_path: Path) -> None:
    write(tmp_path / "j")
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-7])
    assert read_journal(tmp_path / "j", was_killed=True).events == EVENTS[:-1]
    with pytest.raises(msgspec.DecodeError):
        read_journal(tmp_path / "j")


def test_a_journal_says_who_wrote_it(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(msgspec.json.encode(EVENTS[0]) + b"\n")
    with pytest.raises(ValueError, match="does not begin"):
        read_journal(tmp_path / "j")
