"""Claim: the probes answer beside the metrics, and the health check of the image passes while the job is ready."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.control.metrics import Metrics
from pipelines.http_api import timed_protocol
from pipelines.http_api.http_server import CONNECTIONS_MAX, HttpServer, Listener
from pipelines.http_api.metrics_app import metrics_app
from popstream.wire.base_errors import Invalid
from tests.support.threads import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_SH = Path(__file__).parents[4] / "docker" / "ready.sh"
TIMEOUT_S = 30


class Port:
    """A port with metrics and probes, as the job serves it; `reasons` are why it is not ready."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        app = metrics_app(Metrics().registry, lambda: self.reasons)
        self._server = HttpServer([Listener("127.0.0.1", 0, app, "metrics_port")])
        (self.number,) = self._server.ports
        self._server.__enter__()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.number}{path}", timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def check(self) -> tuple[int, str]:
        """The health check of docker/Dockerfile."""
        environment = {"PATH": os.environ["PATH"], "POPSTREAM_METRICS_PORT": str(self.number)}
        done = subprocess.run(
            [READY_SH], env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        return done.returncode, done.stdout

    def close(self) -> None:
        self._server.__exit__(None, None, None)


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


def test_metrics_are_shown_all_or_by_name(port: Port) -> None:
    status, text = port.get("/metrics")
    assert status == 200
    assert "popstream_ready" in text
    status, text = port.get("/metrics?name[]=popstream_outbox_bytes")
    assert status == 200
    assert "popstream_outbox_bytes" in text
    assert "popstream_ready" not in text


def test_a_version_of_a_format_that_is_none_gets_the_usual_one(port: Port) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port.number}/metrics", headers={"Accept": "application/openmetrics-text; version=foo"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        assert answer.headers["Content-Type"].startswith("text/plain")


def test_many_metrics_are_compressed_for_who_can_read_that(port: Port) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port.number}/metrics",
        headers={"Accept-Encoding": "gzip", "Accept": "application/openmetrics-text; version=1.0.0"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert gzip.decompress(answer.read()).endswith(b"# EOF\n")


def test_a_port_that_is_taken_is_named_with_its_option(port: Port) -> None:
    listener = Listener("127.0.0.1", port.number, metrics_app(Metrics().registry, list), "metrics_port")
    with pytest.raises(Invalid, match="choose another --metrics-port or --metrics-host"):
        HttpServer([listener])
    assert port.get("/live") == (200, "ok\n")


def test_a_job_that_does_not_answer_is_not_healthy(port: Port) -> None:
    port.close()
    assert port.check()[0] == 1


def test_connections_that_send_no_request_do_not_keep_the_others_out(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_protocol, "CHECK_S", 0.01)
    monkeypatch.setattr(timed_protocol, "REQUEST_S_MAX", 0.05)
    with contextlib.ExitStack() as opened:
        for number in range(CONNECTIONS_MAX + 5):
            silent = opened.enter_context(socket.create_connection(("127.0.0.1", port.number), timeout=TIMEOUT_S))
            if number % 2:
                silent.sendall(b"POST /live HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        eventually(lambda: port.get("/live")[0] == 200)


def test_a_connection_that_asks_again_and_again_stays(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_protocol, "CHECK_S", 0.01)
    monkeypatch.setattr(timed_protocol, "REQUEST_S_MAX", 0.5)
    asking = http.client.HTTPConnection("127.0.0.1", port.number, timeout=TIMEOUT_S)
    asking.connect()
    first = asking.sock
    for _ in range(20):
        asking.request("GET", "/live")
        assert asking.getresponse().read() is not None
        time.sleep(0.05)
    assert asking.sock is first
    asking.close()
