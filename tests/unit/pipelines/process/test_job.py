"""Claim: constructing a job does nothing; only `start` opens files, connections and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.job_settings import JobSettings
from pipelines.process.job import Job
from popstream.kafka_connection import KafkaConnection
from tests.support.threads import leaves_no_thread

if TYPE_CHECKING:
    from pathlib import Path


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
