"""Claim: a job that fails is replaced as long as that may help, told when it does not, and never left half stopped.

Method: a host that was not entered, whose jobs are made here: what wakes, ends and replaces them is its own.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from checkpoints.ownership import Ownership
from pipelines.process import host as host_module
from pipelines.process import restarts as restarts_module
from pipelines.process.host import Host
from pipelines.settings import JobSettings
from popstream.wire.failures import Corrupt, Fenced, Unavailable

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
    """What asking it would tell: of which job, or why of none."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def attach(self, job: Any) -> None:
        self.told.append(job)

    def detach(self, why: str) -> None:
        self.told.append(why)


class UnenteredHost(Host):
    """Its first job has failed; the next ones come from `made`, which may hold what keeps one from starting."""

    job: Any
    control_server: Any

    def __init__(self, folder: Path, failure: BaseException, made: list[MadeUpJob | Exception]) -> None:
        super().__init__(JobSettings(folder=folder, bootstrap_servers="127.0.0.1:1"), var=folder)
        self.bootstrap_servers = "127.0.0.1:1"
        self.first = MadeUpJob(failure)
        self.job = self.first
        self.told = MadeUpServer()
        self.control_server = self.told
        self._made = made

    def _start_job(self) -> Any:
        made = self._made.pop(0)
        if isinstance(made, Exception):
            raise made
        self.request_stop()  # one turn is enough
        return made


@pytest.fixture(autouse=True)
def _kafka_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "reach_kafka", lambda _servers, timeout_s: None)  # noqa: ARG005 - named by callers
    monkeypatch.setattr(restarts_module, "NOT_STARTED_RETRY_S", 0.01)


def test_it_starts_another_one_however_often_kafka_is_not_ready_for_it(tmp_path: Path) -> None:
    """More often than a job may fail for other reasons; whoever asks meanwhile is told why there is none."""
    away = [Unavailable(f"no leader {number}") for number in range(2 * restarts_module.NO_PROGRESS_MAX)]
    last = MadeUpJob()
    host = UnenteredHost(tmp_path, Unavailable("Kafka is away"), [*away, last])
    assert host.wait() is None
    assert host.job is last
    assert not host.not_ready_reasons
    assert host.first.is_stopped
    assert host.told.told == [f"starting again after: {error}" for error in (host.first.failure, *away)] + [last]


def test_it_ends_with_what_would_not_pass(tmp_path: Path) -> None:
    """At once, and with the later reason: the first one has been healed."""
    corrupt = Corrupt("the log has lost records")
    host = UnenteredHost(tmp_path, Unavailable("Kafka is away"), [corrupt])
    assert host.wait() is corrupt
    assert host.not_ready_reasons == ["starting again after: Kafka is away"]


def test_a_failure_that_would_not_pass_starts_nothing(tmp_path: Path) -> None:
    """The job is left to the host's own end."""
    corrupt = Corrupt("another log")
    host = UnenteredHost(tmp_path, corrupt, [])
    assert host.wait() is corrupt
    assert not host.first.is_stopped
    assert host.told.told == []


def test_a_job_that_does_not_stop_is_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still write: no other job of this process, and the folder stays locked until the process ends."""
    killed: list[str] = []
    monkeypatch.setattr(host_module, "STOP_TO_RESTART_S_MAX", 0.1)
    monkeypatch.setattr(host_module, "STOP_BROKEN_S_MAX", 0.1)
    monkeypatch.setattr(host_module, "kill_jvm", lambda: killed.append("jvm"))
    host = UnenteredHost(tmp_path, Unavailable("Kafka is away"), [MadeUpJob()])
    host.first.may_stop.clear()
    ownership = Ownership(tmp_path / "lock")
    assert host.wait() is host.first.failure
    host._stop_last_job()  # what the exit of an entered one does
    host._release_ownership(ownership)
    assert killed == ["jvm"]
    with pytest.raises(Fenced):
        Ownership(tmp_path / "lock")
    ownership.release()
    host.first.may_stop.set()


@pytest.mark.parametrize("ends", ["while it stops the last one", "while Kafka is away"])
def test_who_asks_it_to_stop_does_not_wait_for_another_job(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No failure is told: it was asked for."""
    host = UnenteredHost(tmp_path, Unavailable("Kafka is away"), [])

    def never(_servers: str, timeout_s: float) -> None:
        host.request_stop()
        message = f"no answer within {timeout_s} s"
        raise Unavailable(message)

    if ends == "while Kafka is away":
        monkeypatch.setattr(host_module, "reach_kafka", never)
    else:
        host.first.on_stop = host.request_stop
    assert host.wait() is None
    assert host.first.is_stopped
