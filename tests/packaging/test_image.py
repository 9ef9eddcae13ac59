"""Claim: the image of docker/Dockerfile runs the job with no more rights than docker/compose.yaml gives it.

Method: Docker or Podman builds the image. The job runs against a real Kafka, serves `popstream perf` from outside, is
stopped, and continues in a new container with the volumes of the first.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from connectors.local_servers.loopback import free_port
from tests.support.processes.job_process import ROOT
from tests.support.processes.up_process import run_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.image, pytest.mark.timeout(2_400)]

IMAGE = "localhost/popstream:image-test"
START_TIMEOUT_S = 180.0


class Engine:
    """Docker or Podman, and what it ran."""

    def __init__(self, program: str) -> None:
        self.program = program

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command of the engine; its output is text."""
        return subprocess.run([self.program, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)

    def output(self, *arguments: str) -> str:
        """Run one command that has to succeed; return what it printed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The engine of this machine; without one the tests fail, for a skipped test says nothing about the image."""
    program = os.environ.get("ENGINE") or next(filter(None, map(shutil.which, ("podman", "docker"))), None)
    if program is None:
        pytest.fail("there is no podman or docker on PATH: install one, or name it by ENGINE=/path")
    return Engine(program)


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    """The image, from this checkout; `PYTHON_IMAGE` names another base."""
    bases = [f"--build-arg=PYTHON_IMAGE={base}"] if (base := os.environ.get("PYTHON_IMAGE")) else []
    # Podman's own format has no health checks.
    formats = ["--format=docker"] if Path(engine.program).name == "podman" else []
    engine.output("build", *formats, *bases, "--tag", IMAGE, "--file", "docker/Dockerfile", ".")
    return IMAGE


class Job:
    """A container with the job."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name

    def exec(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container."""
        return self._engine.run("exec", self._name, *command)

    def wait_until_healthy(self) -> None:
        """Carry out the health check of the image until it succeeds."""
        test = self._engine.output("inspect", "--format={{json .Config.Healthcheck.Test}}", self._name)
        kind, *health_check = json.loads(test)
        assert kind == "CMD"
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while (looked := self.exec(*health_check)).returncode != 0:
            assert time.monotonic() < deadline_s, looked.stdout + looked.stderr + self.log()
            time.sleep(1)

    def status(self) -> dict[str, Any]:
        """Return what `popstream status` says in the container."""
        done = self.exec("popstream", "status", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def log(self) -> str:
        """Return what it has logged."""
        logged = self._engine.run("logs", self._name)
        return logged.stdout + logged.stderr

    def stopped(self) -> int:
        """Stop it as an engine does, by SIGTERM; return the exit code of the job."""
        self._engine.output("stop", "--time=60", self._name)
        return int(self._engine.output("inspect", "--format={{.State.ExitCode}}", self._name))


@pytest.fixture
def name(engine: Engine) -> Iterator[str]:
    """The name of containers and volumes that are removed at the end."""
    made = f"popstream-{secrets.token_hex(5)}"
    yield made
    for container in (f"{made}-1", f"{made}-2"):
        engine.run("rm", "--force", container)
    engine.run("volume", "rm", f"{made}-var", f"{made}-tmp")


def test_image_runs_the_job_and_continues_in_another_container(
    engine: Engine, image: str, name: str, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    service = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]["job"]
    volumes = (mount.partition(":")[2] for mount in service["volumes"])
    options = [
        "--network=host",
        *(f"--cap-drop={capability}" for capability in service["cap_drop"]),
        *(f"--security-opt={option}" for option in service["security_opt"]),
        f"--memory={service['mem_limit']}",
        *(["--read-only"] if service["read_only"] else []),
        *(f"--volume={name}-{Path(place).name}:{place}" for place in volumes),
        f"--env=POPSTREAM_BOOTSTRAP_SERVERS={kafka.bootstrap_servers}",
        f"--env=POPSTREAM_TOPIC_PREFIX={name}",
        "--env=POPSTREAM_MESSAGE_TOPICS=*",
        "--env=POPSTREAM_METRICS_HOST=127.0.0.1",
        f"--env=POPSTREAM_METRICS_PORT={free_port()}",
    ]
    applied = []
    for container in (f"{name}-1", f"{name}-2"):
        engine.output("run", "--detach", "--name", container, *options, image)
        job = Job(engine, container)
        job.wait_until_healthy()
        assert job.exec("id", "--user", "--name").stdout.strip() == "popstream"
        load = run_for(
            tmp_path / "job",
            *("perf", "--messages=2000", f"--prefix={name}", f"--bootstrap-servers={kafka.bootstrap_servers}"),
        )
        assert load.returncode == 0, load.stdout + load.stderr
        applied.append(job.status()["apply_seq"])
        # A class archive that does not fit is a warning of the JVM.
        assert "shared archive" not in job.log()
        assert job.stopped() == 0
    first, second = applied
    assert 0 < first < second
