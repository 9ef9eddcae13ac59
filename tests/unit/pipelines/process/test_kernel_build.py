"""A job whose compiled kernel is of other sources runs all the same, and says once what brings back its speed."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipelines.job_settings import JobSettings
from pipelines.process import host as host_module
from pipelines.process import kernel_build
from pipelines.process.host import Host
from pipelines.process.kernel_build import warn_of_stale_build
from popstream.wire.base_errors import Unavailable


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of builds of an installation that has none, and has not chosen the sources."""
    monkeypatch.setattr(kernel_build, "KERNEL_FORM", "pure")
    monkeypatch.setattr(kernel_build, "build_folder", lambda: tmp_path / "kernel" / "of-these-sources")
    monkeypatch.delenv("POPSTREAM_PURE", raising=False)
    return tmp_path / "kernel"


def logged() -> list[Any]:
    with capture_logs() as logs:
        warn_of_stale_build()
    return logs


def test_a_build_of_other_sources_is_said_with_the_command_that_makes_another(kernels: Path) -> None:
    (kernels / "of-other-sources").mkdir(parents=True)
    (entry,) = logged()
    assert (entry["event"], entry["log_level"]) == ("kernel_build_stale", "warning")
    assert (entry["folder"], entry["repair"]) == (str(kernels), "make setup")


def test_nothing_is_said_where_nothing_was_compiled(kernels: Path) -> None:
    assert logged() == []
    (kernels / ".build-interrupted").mkdir(parents=True)
    assert logged() == []


def test_nothing_is_said_of_a_build_that_runs_nor_where_the_sources_were_chosen(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kernels / "of-other-sources").mkdir(parents=True)
    monkeypatch.setenv("POPSTREAM_PURE", "1")
    assert logged() == []
    monkeypatch.delenv("POPSTREAM_PURE", raising=False)
    monkeypatch.setattr(kernel_build, "KERNEL_FORM", "compiled")
    assert logged() == []


def test_a_start_of_the_process_says_it_when_its_log_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def without_kafka(_: Host) -> None:
        done.append("kafka")
        message = "no Kafka in this test"
        raise Unavailable(message)

    monkeypatch.setattr(host_module, "require_ready", lambda *_, **__: None)
    monkeypatch.setattr(host_module, "limit_arenas", lambda: None)
    monkeypatch.setattr(host_module, "handled_signals", lambda _: nullcontext())
    monkeypatch.setattr(host_module, "configure_logs", lambda *_: done.append("log"))
    monkeypatch.setattr(host_module, "warn_of_stale_build", lambda: done.append("warned"))
    monkeypatch.setattr(Host, "_start_kafka", without_kafka)
    with pytest.raises(Unavailable, match="in this test"), Host(JobSettings(folder=tmp_path / "job"), var=tmp_path):
        pass
    assert done == ["log", "warned", "kafka"]
