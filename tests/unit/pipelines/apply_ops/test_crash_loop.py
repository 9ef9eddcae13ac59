"""Claim: a record that cannot be decided is quarantined after three attempts, and never stops the job.

Method: MicroBatchApplier over a real store. The culprit makes the kernel raise, or makes the process end, wherever it
is folded; in the second case every attempt runs in its own process. The result is compared with that of a log in which
the record had been rejected from the start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker_state.kernel.fold import fold
from broker_state.store.rocks_store import FAMILIES, META, RocksStore, StoreStopped
from checkpoints.micro_batch_attempts import Attempts
from connectors.delta.rows import decode_rows
from pipelines.apply_ops import micro_batch
from pipelines.apply_ops.crash_loop import MICRO_BATCH_ATTEMPTS_MAX, CrashLoopBreaker
from pipelines.decide_ops import ops_decider
from pipelines.decide_ops.entries import read_frame, read_slice
from pipelines.decide_ops.entry import EntryKind
from pipelines.decide_ops.order import TurnLength
from pipelines.decide_ops.poison import ALONE_ATTEMPTS_MAX
from tests.support.in_process.small_job import DECLARE, POP, SmallJob, written_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker_state.kernel.context.decision import OpRecord
    from pipelines.decide_ops.decode import KafkaRecord

ROOT = Path(__file__).parents[4]
CULPRIT = "culprit"
LOG: list[dict[str, Any]] = [
    DECLARE,
    written_to(0, 19),
    *({**POP, "op_id": f"before-{number}"} for number in range(7)),
    {**POP, "op_id": CULPRIT},
    *({**POP, "op_id": f"after-{number}"} for number in range(6)),
]


def broken_fold(fail: Callable[[], None], sizes: list[int]) -> Callable[..., Any]:
    """Return a `fold` that calls `fail` when it folds the culprit, and appends the size of each attempt to `sizes`."""

    def fold_all(overlay: Any, records: Iterable[OpRecord], decision: Any) -> Any:
        records = list(records)
        sizes.append(len(records))
        touched = set()
        for record in records:
            touched |= fold(overlay, [record], decision)
            if record.command.op_id == CULPRIT:
                fail()
        return touched

    return fold_all


def break_kernel(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]) -> list[int]:
    """Put `broken_fold` in place."""
    sizes: list[int] = []
    monkeypatch.setattr(ops_decider, "fold", broken_fold(fail, sizes))
    return sizes


def state_of(store: RocksStore) -> dict[str, dict[bytes, bytes]]:
    return {family: dict(store.scan(family, b"")) for family in FAMILIES[:3]}


def answers_of(job: SmallJob) -> list[dict[str, Any]]:
    frames = [read_frame(entry.value)[1] for entry in job.published if entry.kind == EntryKind.ANSWERS]
    return [answer for frame in frames for answer in json.loads(frame)["answers"]]


def run_without_the_culprit(root: Path, place: tuple[int, int]) -> dict[str, dict[bytes, bytes]]:
    """Return the state of a job in which the culprit is quarantined from the start."""
    with RocksStore(root / "state") as store:
        job = SmallJob(root, store)
        job.quarantine.add(*place, "known")
        job.run(*LOG)
        return state_of(store)


@pytest.mark.parametrize("error", [KeyError("no such lane"), ValueError("no such lane, cannot be encoded: \ud800")])
def test_a_record_that_raises_is_found_and_quarantined(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = run_without_the_culprit(tmp_path / "wanted", (0, 9))

    def fail() -> None:
        raise error

    sizes = break_kernel(monkeypatch, fail)
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(*LOG)
        assert state_of(store) == wanted
        assert job.apply_ops.applied.next_offset == {0: len(LOG)}
        assert [place for place, _ in job.quarantine] == [(0, 9)]
        assert "no such lane" in dict(job.quarantine)[0, 9]
    # Two slices of a micro-batch; three attempts end in the second one, then that one is halved.
    assert sizes[: 2 * MICRO_BATCH_ATTEMPTS_MAX] == [8, 8] * MICRO_BATCH_ATTEMPTS_MAX
    assert len(sizes) < 2 * MICRO_BATCH_ATTEMPTS_MAX + 12
    answers = answers_of(job)
    assert [answer["op_id"] for answer in answers if answer["reason"] == "OK" and answer["type"] == "pop"] == [
        *(f"before-{number}" for number in range(7)),
        *(f"after-{number}" for number in range(6)),
    ]
    (refused,) = [answer for answer in answers if answer["op_id"] == CULPRIT]
    assert (refused["code"], refused["applied"]) == (29, False)
    assert refused["detail"].startswith(f"QUARANTINED: {type(error).__name__}")
    assert job.reports[-1].records == len(LOG)
    assert job.reports[-1].rejected.total() == 1


def test_what_is_written_before_the_poison_record_is_met_is_not_decided_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempts are fast, and deciding the halves takes so long that each turn is written by itself."""

    def fail() -> None:
        message = "no such lane"
        raise KeyError(message)

    # In the last quarter of its slice, so that the first half is over when it is met.
    pops = [{**POP, "op_id": op_id} for op_id in (*(f"before-{number}" for number in range(12)), CULPRIT, "after")]
    log = [DECLARE, written_to(0, 19), *pops]
    break_kernel(monkeypatch, fail)
    halve = CrashLoopBreaker._apply_halves

    def halve_slowly(breaker: CrashLoopBreaker, records: list[KafkaRecord]) -> None:
        monkeypatch.setattr(micro_batch, "WRITE_AFTER_S", -1.0)
        halve(breaker, records)

    monkeypatch.setattr(CrashLoopBreaker, "_apply_halves", halve_slowly)
    monkeypatch.setattr(TurnLength, "took", lambda _length, _seconds: None)
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.apply_ops._turn_length.records = 1
        job.run(*log)
        slices = [read_slice(entry.value) for entry in job.outbox.undelivered(EntryKind.AUDIT)]
        rows = [
            row for table, data in slices if table == "operations" for row in decode_rows(table, [data]).to_pylist()
        ]
        assert Counter(row["kafka_offset"] for row in rows) == dict.fromkeys(set(range(16)) - {14}, 1)
        assert [place for place, _ in job.quarantine] == [(0, 14)]
        assert job.apply_ops.applied.next_offset == {0: 16}


def test_two_failures_that_do_not_repeat_quarantine_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third attempt succeeds, and the micro-batch is one WriteBatch as usual."""
    wanted_root = tmp_path / "wanted"
    with RocksStore(wanted_root / "state") as store:
        SmallJob(wanted_root, store).run(*LOG)
        wanted = state_of(store)
    failures = iter(range(MICRO_BATCH_ATTEMPTS_MAX - 1))

    def fail() -> None:
        if next(failures, None) is not None:
            raise MemoryError

    break_kernel(monkeypatch, fail)
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(*LOG)
        assert len(job.quarantine) == 0
        assert job.apply_ops.applied.apply_seq == 1
        assert state_of(store) == wanted
    assert not (tmp_path / "attempts").exists()


def test_a_failing_disk_quarantines_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        message = "the write failed: IO error"
        raise StoreStopped(message)

    attempts = 2 * (MICRO_BATCH_ATTEMPTS_MAX + ALONE_ATTEMPTS_MAX)
    with monkeypatch.context() as broken:
        sizes = break_kernel(broken, fail)
        for _ in range(attempts):
            with RocksStore(tmp_path / "state") as store, pytest.raises(StoreStopped):
                SmallJob(tmp_path, store).run(*LOG)
    assert sizes == [8, 8] * attempts
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(*LOG)
        assert len(job.quarantine) == 0
        assert job.apply_ops.applied.apply_seq == 1


def die() -> None:
    """End the process as the operating system does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_until_it_dies(root: Path) -> bool:
    """Decide the log in a child process; return whether it reached the end."""
    code = subprocess.run(
        [sys.executable, "-m", "tests.unit.pipelines.apply_ops.test_crash_loop", str(root)], cwd=ROOT, check=False
    ).returncode
    assert code in {0, -signal.SIGKILL}
    return code == 0


def test_a_record_that_kills_the_process_is_found_and_quarantined(tmp_path: Path) -> None:
    wanted = run_without_the_culprit(tmp_path / "wanted", (0, 9))
    deaths = 0
    while not run_until_it_dies(tmp_path):
        deaths += 1
        assert deaths < 20, "the job is killed again and again"
    assert deaths == MICRO_BATCH_ATTEMPTS_MAX + ALONE_ATTEMPTS_MAX
    with RocksStore(tmp_path / "state") as store:
        assert state_of(store) == wanted
        assert len(list(store.scan(META, b"quarantine", b"quarantinf"))) == 1


def test_attempts_are_counted_from_one_after_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text('{"next_offset":')
    attempts = Attempts(tmp_path / "attempts")
    assert attempts.begin({0: 1}) == 1
    assert Attempts(tmp_path / "attempts").begin({0: 1}) == 2
    assert Attempts(tmp_path / "attempts").begin({0: 1}, (0, 1)) == 1
    assert Attempts(tmp_path / "attempts").alone == (0, 1)


if __name__ == "__main__":
    ops_decider.__dict__["fold"] = broken_fold(die, [])
    with RocksStore(Path(sys.argv[1]) / "state") as opened:
        SmallJob(Path(sys.argv[1]), opened).run_from_start(*LOG)
