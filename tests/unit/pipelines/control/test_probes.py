"""Claim: the probes answer beside the metrics, and the health check of the image passes while the job is ready."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import make_wsgi_app, start_http_server

from pipelines.control.metrics import Metrics
from pipelines.control.probes import with_probes

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_SH = Path(__file__).parents[4] / "docker" / "ready.sh"
TIMEOUT_S = 30


class Port:
    """A port with metrics and probes, as the job serves it; `reasons` are why it is not ready."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        registry = Metrics().registry
        self.server, self._thread = start_http_server(0, addr="127.0.0.1", registry=registry)
        self.server.set_app(with_probes(make_wsgi_app(registry), lambda: self.reasons))

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.server.server_port}{path}", timeout=TIMEOUT_S
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def check(self) -> tuple[int, str]:
        """The health check of docker/Dockerfile."""
        environment = {"PATH": os.environ["PATH"], "POPSTREAM_METRICS_PORT": str(self.server.server_port)}
        done = subprocess.run(
            [READY_SH], env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        return done.returncode, done.stdout

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.close()


def test_a_job_that_decides_and_delivers_is_ready(port: Port) -> None:
    assert port.get("/ready") == (200, "ok\n")
    assert port.check() == (0, "ok\n")


def test_a_job_that_is_not_ready_says_why_and_is_alive(port: Port) -> None:
    port.reasons = ["Kafka does not answer", "the outbox is full"]
    assert port.get("/ready") == (503, "Kafka does not answer\nthe outbox is full\n")
    assert port.check() == (1, "Kafka does not answer\nthe outbox is full\n")
    assert port.get("/live") == (200, "ok\n")


def test_other_paths_are_metrics(port: Port) -> None:
    status, text = port.get("/metrics")
    assert status == 200
    assert "popstream_ready" in text


def test_a_job_that_does_not_answer_is_not_healthy(port: Port) -> None:
    port.close()
    assert port.check()[0] == 1
