"""Claims: constructing a job does nothing; only `start` opens files, connections and threads. It reports commands that
work as they are printed, by whichever process.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from checkpoints.prefix_owner import Owner
from pipelines import printed_commands
from pipelines.cli.options import RecoveryOptions
from pipelines.cli.state.status import _print as print_status
from pipelines.cli.up import _summary
from pipelines.control.messages import Failure
from pipelines.control.status_report import StatusReporter
from pipelines.job_settings import JobSettings
from pipelines.printed_commands import completed_commands, remember_job
from pipelines.process.job import Job
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import RESTORE, Corrupt, Unavailable
from tests.support.threads import leaves_no_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_TABLE_CHECKPOINT = "no checkpoint of the log of deliveries was written at version 50: no memory"
OWNER = Owner(session="s", term=1, state_epoch="e", has_decided=True, ops_topic_id="t", place="p")


def test_a_job_is_constructed_without_side_effects(tmp_path: Path) -> None:
    nothing: Any = None
    with leaves_no_thread():
        job = Job(JobSettings(folder=tmp_path / "job"), KafkaConnection("127.0.0.1:1"), nothing, nothing)
    assert not (tmp_path / "job").exists()
    assert (job.failure, job.builder, job.wait(0)) == (None, None, False)


def test_the_first_failure_is_that_of_the_job(tmp_path: Path) -> None:
    nothing: Any = None
    job = Job(JobSettings(folder=tmp_path / "job"), KafkaConnection("127.0.0.1:1"), nothing, nothing)
    first = OSError("first")
    job.fail(first)
    job.fail(OSError("second"))
    assert job.failure is first
    assert job.wait(0)


@pytest.fixture
def options_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that makes this process one with the options of these settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("_options", "_options_elsewhere"):
        monkeypatch.setattr(printed_commands, name, {})
    yield remember_job
    remember_job(JobSettings())


def damaged_job(settings: JobSettings) -> Any:
    """Return a job that was not started, with what a report is made of: damage is all that it has met."""
    nothing: Any = None
    job: Any = Job(settings, KafkaConnection("k:9092"), nothing, nothing)
    job.apply_ops = SimpleNamespace(applied=SimpleNamespace(apply_seq=3))
    job.prefix_ownership = SimpleNamespace(owner=OWNER)
    job.flush = SimpleNamespace(delivered_seq=3)
    job.flush_loop = SimpleNamespace(problem=None)
    job.outbox = SimpleNamespace(undelivered_bytes=0)
    job.log_watch = SimpleNamespace(lag=0, overdue=0, problem=None)
    job.quarantine = []
    job._flusher = SimpleNamespace(table_checkpoint_failures=[NO_TABLE_CHECKPOINT])
    job.snapshot_loop = SimpleNamespace(last=None, last_failure=f"no snapshot was taken: {RESTORE}")
    job.scrub = SimpleNamespace(damage=[f"state/000009.sst is damaged: {RESTORE}"])
    return job


def test_damage_is_reported_with_a_command_that_works_as_it_is_printed(
    tmp_path: Path, options_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the terminal of the job, the status page, and a command that knows the folder of the job alone."""
    settings = JobSettings(folder=tmp_path / "F", bootstrap_servers="k:9092", topic_prefix="orders")
    options_of(settings)
    job = damaged_job(settings)
    command = f"`popstream restore --folder {tmp_path / 'F'} --bootstrap-servers k:9092 --prefix orders`"
    host: Any = SimpleNamespace(not_ready_reasons=job.not_ready_reasons, job=job)
    assert _summary(host) == f"damaged: state/000009.sst is damaged: stop the job and run {command}"
    status = StatusReporter(job.metrics).status_of(job.report())
    assert status.damage == [f"state/000009.sst is damaged: stop the job and run {command}"]
    assert status.snapshot_failure == f"no snapshot was taken: stop the job and run {command}"

    file = tmp_path / "popstream.toml"
    file.write_text(f'folder = "{tmp_path / "F"}"\ntables = "/elsewhere"\n')
    RecoveryOptions(settings_file=file).load()  # the options of a command that asks the job
    assert status.table_checkpoint_failures == [NO_TABLE_CHECKPOINT]
    print_status(Console(width=400), status)
    assert NO_TABLE_CHECKPOINT in (shown := capsys.readouterr().out)
    assert shown.count(f"stop the job and run {command}\n") == 2


def test_a_job_that_has_failed_names_commands_that_work(tmp_path: Path, options_of: Any) -> None:
    settings = JobSettings(folder=tmp_path / "F", bootstrap_servers="k:9092", topic_prefix="orders")
    options_of(settings)
    job = damaged_job(settings)
    job.fail(Corrupt(f"the state cannot be read: {RESTORE}"))
    command = f"`popstream restore --folder {tmp_path / 'F'} --bootstrap-servers k:9092 --prefix orders`"
    report = job.report()
    assert report.failure == f"the state cannot be read: stop the job and run {command}"
    assert report.not_ready_reasons == [f"the job has ended: {report.failure}"]


def test_a_refused_request_names_a_command_that_works(tmp_path: Path, options_of: Any) -> None:
    """With the options of the job, whatever those of the command that asked are."""
    options_of(JobSettings(folder=tmp_path / "F", bootstrap_servers="k:9092", topic_prefix="orders"))
    failure = Failure.of(Corrupt(f"no snapshot was taken: {RESTORE}"))
    options_of(JobSettings(folder=tmp_path / "F", snapshots="s3://of-the-command/it"))
    assert completed_commands(str(failure.to_error())) == (
        "no snapshot was taken: stop the job and run"
        f" `popstream restore --folder {tmp_path / 'F'} --bootstrap-servers k:9092 --prefix orders`"
    )


def test_a_job_in_the_default_folder_names_it_to_other_processes(tmp_path: Path, options_of: Any) -> None:
    """They may run in another working directory."""
    options_of(JobSettings())
    [damage] = damaged_job(JobSettings()).report().damage
    assert damage.endswith(f"`popstream restore --folder {tmp_path / 'var/job'}`")
    assert completed_commands(RESTORE) == RESTORE


@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_fenced_job_stops_sending_before_anything_else(tmp_path: Path, *, is_fenced: bool) -> None:
    """A snapshot or a compaction in progress may keep the stop waiting for half a minute."""
    job = damaged_job(JobSettings(folder=tmp_path / "job"))
    stopped: list[str] = []
    job.prefix_ownership = SimpleNamespace(is_fenced=is_fenced, hurry=lambda: None)
    job.publisher = SimpleNamespace(abandon=lambda: stopped.append("publisher"))
    job.builder = SimpleNamespace(abandon=lambda: stopped.append("builder"))
    job._stack.callback(lambda: stopped.append("maintenance"))
    job.stop()
    assert stopped == (["builder", "publisher", "maintenance"] if is_fenced else ["maintenance"])


@pytest.mark.parametrize("tables", [None, "shared"])
def test_rows_in_tables_that_may_be_shared_need_an_owner_that_kafka_has_confirmed(
    tmp_path: Path, tables: str | None
) -> None:
    """A job that was frozen learns of its successor later than it writes again."""

    def require() -> None:
        message = "Kafka does not confirm that this job owns the prefix"
        raise Unavailable(message)

    settings = JobSettings(folder=tmp_path / "job", tables=None if tables is None else tmp_path / tables)
    job = damaged_job(settings)
    job.prefix_ownership = SimpleNamespace(require=require, check=lambda: None)
    with pytest.raises(Unavailable) if tables else nullcontext():
        job._require_tables()
