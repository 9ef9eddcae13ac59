"""Claim: a micro-batch passes six steps, and code, fail-points, laps and docs/design.md name them alike."""

import re
from functools import partial
from pathlib import Path

import pytest

from broker_state.store.rocks_store import META, OUTBOX, RocksStore
from checkpoints.applied import NOTED_KEY, decode_noted
from pipelines import failpoints
from pipelines.apply_ops import micro_batch
from pipelines.apply_ops.micro_batch import STEPS
from pipelines.decide_ops.entry import EntryKind
from pipelines.decide_ops.order import TurnLength
from tests.support.in_process.small_job import DECLARE, POP, SmallJob, written_to

ROOT = Path(__file__).parents[4]


@pytest.fixture
def passed(tmp_path: Path) -> tuple[list[str], SmallJob]:
    """The fail-points that a micro-batch of two slices passes, and its job."""
    names: list[str] = []
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        failpoints.arm(names.append)
        try:
            job.run(DECLARE, written_to(0, 9), POP, POP)
        finally:
            failpoints.arm(None)
    return names, job


def test_each_step_passes_its_fail_point_as_it_begins(passed: tuple[list[str], SmallJob]) -> None:
    names, _ = passed
    assert names == [*STEPS[:4], *STEPS[:4], *STEPS[4:]]


def test_each_step_has_a_lap(passed: tuple[list[str], SmallJob]) -> None:
    _, job = passed
    (report,) = job.reports
    assert list(report.seconds) == ["fetch", *STEPS]


def test_a_micro_batch_without_anything_new_writes_and_publishes_nothing(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE)
        published = list(job.published)
        job.run_from_start(DECLARE)
        assert job.published == published
        assert job.apply_ops.applied.apply_seq == 1
        assert job.reports[-1].records == 0


def test_code_and_documentation_number_the_steps() -> None:
    numbered = [f"{number} {name}" for number, name in enumerate(STEPS, 1)]
    code = Path(micro_batch.__file__).read_text()
    assert re.findall(r"# Step (\d: \w+)", code) == [each.replace(" ", ": ") for each in numbered]
    assert " ── ".join(numbered) in (ROOT / "docs" / "design.md").read_text()


def test_what_takes_long_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the parts are, state, answers and rows are those of one WriteBatch."""
    records = [DECLARE, written_to(0, 99), *[POP] * 30]
    left = []
    monkeypatch.setattr(TurnLength, "took", lambda *_: None)
    for name, turn, seconds in (("whole", 1_000, 3_600.0), ("parts", 3, 0.0)):
        monkeypatch.setattr(micro_batch, "TurnLength", partial(TurnLength, turn))
        monkeypatch.setattr(micro_batch, "WRITE_AFTER_S", seconds)
        with RocksStore(tmp_path / name / "state") as store:
            job = SmallJob(tmp_path / name, store)
            job.run(*records)
            applied = job.apply_ops.applied
            (report,) = job.reports
            left.append((list(store.scan("state", b"")), applied.next_offset, report.records, report.operations))
            assert applied.apply_seq == (1 if name == "whole" else 12)
    assert left[0] == left[1]


def test_rows_leave_the_outbox_only_with_a_note_that_they_are_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush ends while the WriteBatch is put together, right after the applier has asked what is delivered."""
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE, written_to(0, 9), POP)
        rows = [*job.outbox.undelivered(EntryKind.AUDIT)]
        assert rows

        def ask_and_then_end_a_flush() -> dict[str, int]:
            known = dict(job.delivered)
            job.outbox.delivered(row.key for row in rows)
            job.delivered["operations"] = 1
            return known

        monkeypatch.setattr(job.apply_ops, "_delivered", ask_and_then_end_a_flush)
        for _ in range(2):
            job.run(POP)
            has_left = any(store.get(OUTBOX, row.key) is None for row in rows)
            assert not has_left or decode_noted(store.get(META, NOTED_KEY)) == {"operations": 1}
        assert has_left
