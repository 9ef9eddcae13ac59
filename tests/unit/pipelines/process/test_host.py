"""Claim: a failed job is replaced while that may help, otherwise its failure is reported; it never stays half stopped.

Method: a host that was not entered, whose jobs are made here: what wakes, ends and replaces them is its own.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from broker_state.store.rocks_store import DiskFailed
from checkpoints.ownership import Ownership
from pipelines.job_settings import JobSettings
from pipelines.process import host as host_module
from pipelines.process import restarts as restarts_module
from pipelines.process.host import Host
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Fenced, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class MadeUpJob:
    """Runs until it fails; `stop` waits until it `may_stop`."""

    def __init__(self, failure: BaseException | None = None, apply_seq: int = 7) -> None:
        self.failure = failure
        self.applied = SimpleNamespace(apply_seq=apply_seq)
        self.not_ready_reasons: list[str] = []
        self.may_stop = threading.Event()
        self.may_stop.set()
        self.is_stopped = False
        self.on_stop: Callable[[], None] = lambda: None

    def wait(self, _timeout_s: float) -> bool:
        return self.failure is not None

    def stop(self) -> None:
        self.on_stop()
        self.may_stop.wait()
        self.is_stopped = True


class MadeUpServer:
    """Records which job was attached, or why none was."""

    def __init__(self) -> None:
        self.reported: list[Any] = []

    def attach(self, job: Any) -> None:
        self.reported.append(job)

    def detach(self, why: str) -> None:
        self.reported.append(why)


class UnenteredHost(Host):
    """A host whose first job has failed. `made` has the next jobs, or the errors that keep them from starting."""

    job: Any
    answers: Any

    def __init__(self, folder: Path, failure: BaseException, made: list[MadeUpJob | Exception]) -> None:
        super().__init__(JobSettings(folder=folder, bootstrap_servers="127.0.0.1:1"), var=folder)
        self.connection = KafkaConnection("127.0.0.1:1")
        self.first = MadeUpJob(failure)
        self.job = self.first
        self.control = MadeUpServer()
        self.answers = self.control
        self._made = made

    def _start_job(self) -> Any:
        made = self._made.pop(0)
        if isinstance(made, Exception):
            raise made
        self.request_stop()  # end `wait` after this restart
        return made


@pytest.fixture(autouse=True)
def _kafka_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "reach_kafka", lambda _connection, timeout_s: None)  # noqa: ARG005 - named by callers
    monkeypatch.setattr(restarts_module, "NOT_STARTED_RETRY_S", 0.01)


def test_it_restarts_without_limit_while_kafka_is_unavailable(tmp_path: Path) -> None:
    """More often than after other failures. Meanwhile `status` reports the reason."""
    away = [Unavailable(f"no leader {number}") for number in range(2 * restarts_module.NO_PROGRESS_MAX)]
    last = MadeUpJob()
    host = UnenteredHost(tmp_path, Unavailable("Kafka is away"), [*away, last])
    assert host.wait() is None
    assert host.job is last
    assert not host.not_ready_reasons
    assert host.first.is_stopped
    assert host.control.reported == [f"starting again after: {error}" for error in (host.first.failure, *away)] + [last]


def test_a_permanent_failure_of_a_restart_ends_it(tmp_path: Path) -> None:
    """At once, and with the later failure: the first one was transient."""
    corrupt = Corrupt("the log has lost records")
    host = UnenteredHost(tmp_path, Unavailable("Kafka is away"), [corrupt])
    assert host.wait() is corrupt
    assert host.not_ready_reasons == ["starting again after: Kafka is away"]


def test_a_permanent_failure_is_not_restarted(tmp_path: Path) -> None:
    """The exit of the host stops the job."""
    corrupt = Corrupt("another log")
    host = UnenteredHost(tmp_path, corrupt, [])
    assert host.wait() is corrupt
    assert not host.first.is_stopped
    assert host.control.reported == []


def test_a_job_that_does_not_stop_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still write: no other job is started, and the folder stays locked until the process ends."""
    killed: list[str] = []
    monkeypatch.setattr(host_module, "STOP_TO_RESTART_S_MAX", 0.1)
    monkeypatch.setattr(host_module, "STOP_BROKEN_S_MAX", 0.1)
    monkeypatch.setattr(host_module, "kill_jvm", lambda: killed.append("jvm"))
    host = UnenteredHost(tmp_path, Unavailable("Kafka is away"), [MadeUpJob()])
    host.first.may_stop.clear()
    ownership = Ownership(tmp_path / "lock")
    assert host.wait() is host.first.failure
    host._stop_last_job()  # as at the exit of the host
    host._release_ownership(ownership)
    assert killed == ["jvm"]
    with pytest.raises(Fenced):
        Ownership(tmp_path / "lock")
    ownership.release()
    host.first.may_stop.set()


def test_a_first_start_whose_disk_fails_is_repeated_once(tmp_path: Path) -> None:
    """The supervisor would repeat it in other processes, none of which knows of the failure before."""
    damaged = Corrupt("the disk has failed there twice")
    host = UnenteredHost(tmp_path, Unavailable(""), [DiskFailed("Input/output error"), damaged])
    with pytest.raises(Corrupt) as caught:
        host._start_first_job()
    assert caught.value is damaged
    away = Unavailable("Kafka is away")
    host = UnenteredHost(tmp_path, Unavailable(""), [away])
    with pytest.raises(Unavailable) as not_repeated:
        host._start_first_job()
    assert not_repeated.value is away


def test_a_restart_does_not_take_over_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two jobs would take the prefix from each other by turns."""
    taken: list[bool] = []

    class StartedJob:
        def __init__(self, *_: Any, take_over: bool, traces: None) -> None:
            taken.append(take_over)
            assert traces is None

        def start(self) -> Any:
            return self

    monkeypatch.setattr(host_module, "Job", StartedJob)
    settings = JobSettings(folder=tmp_path, bootstrap_servers="127.0.0.1:1")
    host = Host(settings, var=tmp_path, take_over=True)
    host.connection = KafkaConnection("127.0.0.1:1")
    host.spark = cast("Any", None)
    host._ownership = Ownership(tmp_path / "lock")
    host._start_job()
    host._start_job()
    assert taken == [True, False]
    host._ownership.release()


def test_a_start_that_waits_for_kafka_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    said: list[str] = []

    def refused(servers: KafkaConnection, timeout_s: float) -> None:
        asked.append(timeout_s)
        if len(asked) < 2 or refused_for_good:
            message = f"no Kafka accepts connections at {servers}: does it run at this address?"
            raise Unavailable(message)

    monkeypatch.setattr(host_module, "reach_kafka", refused)
    host = Host(JobSettings(folder=tmp_path, bootstrap_servers="127.0.0.1:1"), var=tmp_path, on_progress=said.append)
    host.connection = KafkaConnection("127.0.0.1:1")
    refused_for_good = False
    host._reach_kafka()
    assert asked == [0, host_module.KAFKA_STARTS_S]
    line = "no Kafka accepts connections at 127.0.0.1:1: does it run at this address? Trying again for 15 s"
    assert said == [line]
    refused_for_good = True
    with pytest.raises(Unavailable, match=r"at 127\.0\.0\.1:1"):
        host._reach_kafka()


@pytest.mark.parametrize("ends", ["while it stops the last one", "while Kafka is away"])
def test_a_stop_request_ends_a_restart(ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a failure: the stop was requested."""
    host = UnenteredHost(tmp_path, Unavailable("Kafka is away"), [])

    def never(_connection: KafkaConnection, timeout_s: float) -> None:
        host.request_stop()
        message = f"no answer within {timeout_s} s"
        raise Unavailable(message)

    if ends == "while Kafka is away":
        monkeypatch.setattr(host_module, "reach_kafka", never)
    else:
        host.first.on_stop = host.request_stop
    assert host.wait() is None
    assert host.first.is_stopped
