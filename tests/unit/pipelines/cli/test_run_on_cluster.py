"""How the driver of a job on a cluster ends when a service fails it at its start (run_on_cluster.py)."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from kafka.errors import KafkaTimeoutError
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from pipelines.cli.cluster import run_on_cluster
from pipelines.cli.exits import Exit
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from pathlib import Path


class Session:
    """In place of Spark's."""

    class sparkContext:  # noqa: N801 - Spark's name
        """With the only thing that is shown of it."""

        master = "spark://host:7077"

    class conf:  # noqa: N801
        """Without settings."""

        @staticmethod
        def get(_: str, default: str) -> str:
            return default

    def stop(self) -> None:
        message = "the JVM has ended"
        raise ConnectionRefusedError(message)


class Job:
    """In place of one on a cluster."""

    raises: ClassVar[Exception | None] = None
    failure: ClassVar[Exception | None] = None
    stops: ClassVar[int] = 0

    def __init__(self, *_: object, **__: object) -> None:
        """Take what a job takes."""

    def start(self) -> None:
        if self.raises is not None:
            raise self.raises

    def wait(self) -> None:
        """End at once."""

    def stop(self) -> None:
        type(self).stops += 1


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    settings = tmp_path / "job.toml"
    settings.write_text('bootstrap_servers = "kafka:9092"\n')
    monkeypatch.setattr(run_on_cluster, "look_early", lambda *_: None)  # it would ask a Kafka
    monkeypatch.setattr(run_on_cluster, "cluster_session", lambda *_: Session())
    monkeypatch.setattr(run_on_cluster, "ClusterJob", Job)
    monkeypatch.setattr(run_on_cluster, "configure_logs", lambda *_, **__: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(run_on_cluster, "remember_job", lambda *_: None)
    monkeypatch.setattr(run_on_cluster, "remembered", lambda *_: lambda value: value)
    monkeypatch.setattr(Job, "stops", 0)
    return lambda: run_on_cluster.main(["--settings", str(settings), "--checkpoint", str(tmp_path / "state")])


ERRORS = [
    (Py4JNetworkError("Connection refused"), "popstream: the job cannot start: Spark failed (Py4JNetworkError)"),
    (ConnectionRefusedError(), "popstream: the job cannot start: Spark failed (ConnectionRefusedError)"),
    (KafkaTimeoutError(), "popstream: the job cannot start: Kafka does not do what is asked (KafkaTimeoutError"),
]


@pytest.mark.parametrize(("error", "text"), ERRORS)
def test_a_service_that_fails_at_the_start_is_a_line_and_worth_another_start(
    error: Exception, text: str, run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Job, "raises", error)
    assert run() == Exit.UNAVAILABLE
    assert capsys.readouterr().err.startswith(text)


def test_a_master_that_is_away_is_a_line_and_worth_another_start(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_: object) -> None:
        message = "Java gateway process exited"
        raise PySparkRuntimeError(message)

    monkeypatch.setattr(run_on_cluster, "cluster_session", away)
    assert run() == Exit.UNAVAILABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert "Java gateway process exited" in line


def test_a_job_that_fails_is_stopped_and_ends_with_its_code(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run() == Exit.OK
    monkeypatch.setattr(Job, "failure", Corrupt("the log was made anew"))
    assert run() == Exit.CORRUPT
    assert Job.stops == 2
