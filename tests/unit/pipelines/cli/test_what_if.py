"""`popstream what-if` as a user runs it, on a log without Kafka."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.snapshot_store import SnapshotStore
from pipelines.cli.app import app
from pipelines.recovery.take_snapshot import take_snapshot
from pipelines.tuning import log_range
from tests.support.in_process.replayed_log import ReplayedLog
from tests.support.kernel_history import NOON_MS
from tests.support.slow_handlers import slow_handlers

if TYPE_CHECKING:
    from typer.testing import Result

HISTORY = slow_handlers(200)


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)
    ReplayedLog(HISTORY.records).patch(monkeypatch)


def what_if(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["what-if", *arguments, "--folder", "job"], env={"TERM": "dumb"})


def test_it_tells_what_would_have_changed_and_what_it_takes_for_granted() -> None:
    done = what_if("g", "--invisible-time", "60s")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == (
        f"{len(HISTORY.records)} operations from 2026-11-21 12:00:00 UTC to 2026-11-21 12:03:25.400 UTC,"
        " after an empty state"
    )
    assert lines[1:4] == ["with invisible time 1 min", "", "g in orders"]
    assert "│ of these redeliveries               │       4 │               0 │      -4 │" in lines
    assert "Of the deliveries that would have been, 200 are handled as in fact." in lines
    assert "What cannot be known, and is taken for granted:" in lines


def test_it_is_data(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = what_if("--max-attempts", "1", "--back-off", "1s,10s", "--json", "--work", str(work))
    found = msgspec.json.decode(done.stdout)
    assert found["settings"] == {"max_attempts": 1, "back_off_ms": [1_000, 10_000]}
    (group,), (lane,) = found["groups"], found["lanes"]
    assert (group["group"], group["lanes"], lane["queue_id"]) == ("g", 1, 0)
    assert (group["fact"]["dead_letters"], group["what_if"]["dead_letters"]) == (0, 5)
    assert len(found["model"]) == 5
    assert list(work.iterdir()) == []


def test_a_range_is_named_by_times() -> None:
    done = what_if("--max-attempts", "1", "--from", str(NOON_MS + 30_000), "--until", "2026-11-21T12:01Z", "--json")
    found = msgspec.json.decode(done.stdout)
    within = [record for record in HISTORY.records if NOON_MS + 30_000 <= record.timestamp_ms < NOON_MS + 60_000]
    assert (found["records"], found["from_ms"]) == (len(within), within[0].timestamp_ms)


def test_a_range_begins_with_a_snapshot(tmp_path: Path) -> None:
    whole = msgspec.json.decode(what_if("--max-attempts", "1", "--from", str(NOON_MS + 120_000), "--json").stdout)
    assert whole["base"] == "an empty state"
    applied = Applied(
        state_epoch="e", ops_topic="popstream.ops", ops_topic_id="ops-topic", apply_seq=1, next_offset={0: 1}
    )
    with RocksStore(tmp_path / "state") as store:
        store.write_changes([(META, APPLIED_KEY, applied.encode())])
        snapshots = SnapshotStore(str(tmp_path / "job" / "snapshots"))
        taken = take_snapshot(store, None, tmp_path / "scratch", snapshots)
    found = msgspec.json.decode(what_if("--max-attempts", "1", "--from", str(NOON_MS + 120_000), "--json").stdout)
    assert found["base"] == f"snapshot {taken.id}"
    assert found["groups"] == whole["groups"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a setting that would be different"),
        (("g",), "name a setting that would be different"),
        (("nobody", "--max-attempts", "3"), "the group nobody received no message in this range; groups that did: g"),
        (("--invisible-time", "13h"), "invisible_time_ms takes 1..43200000"),
        (("--invisible-time", "0s"), "invisible_time_ms takes 1..43200000"),
        (("--back-off", "1s,13h"), "back_off_ms takes 0..43200000"),
        (("--back-off", ",".join(["1s"] * 33)), "number of back_off_ms values takes 0..32"),
        (("--max-attempts", "1", "--from", "2026-11-21T13:00Z"), "popstream.ops has no record in this range"),
        (("--max-attempts", "1", "--until", "2026-11-21"), "popstream.ops has no record in this range"),
        (
            ("--max-attempts", "1", "--from", "2026-11-21T12:02Z", "--until", "2026-11-21T12:01Z"),
            "the range is empty: --until is not after --from",
        ),
    ],
)
def test_what_cannot_be_asked(arguments: tuple[str, ...], words: str) -> None:
    done = what_if(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "option", ["--max-attempts=70000", "--parked-max=-1", "--in-flight-max=x", "--invisible-time=5"]
)
def test_an_option_out_of_range_is_refused_by_its_name(option: str) -> None:
    done = what_if(option)
    assert (done.exit_code, done.stdout) == (2, "")


def test_a_log_that_was_cut_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ReplayedLog(HISTORY.records, first_offset=50).patch(monkeypatch)
    done = what_if("--max-attempts", "1")
    assert (done.exit_code, "has lost records that this range needs" in done.stderr) == (2, True)


def test_a_range_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_range, "PARTITION_RECORDS_MAX", 100)
    done = what_if("--max-attempts", "1")
    assert (done.exit_code, "name a shorter range with --from and --until" in done.stderr) == (2, True)
