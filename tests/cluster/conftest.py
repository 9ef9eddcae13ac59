"""Fixtures of the tests of a Spark cluster: one of processes, and a Spark with its state store on local threads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from connectors.jars.resolve import spark_jars
from connectors.local_servers.process_tree import kill_tree
from connectors.spark_cluster.packed_environment import pack, this_python
from connectors.spark_cluster.spark_home import packaged_spark_home
from connectors.spark_cluster.standalone import StandaloneCluster
from connectors.spark_cluster.submission import Submission, require_submittable, submit_command
from tests.cluster.local_spark import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from tests.cluster.operated_site import OperatedSite

ROOT = Path(__file__).parents[2]
SUBMIT_LIMIT_S = 900
CRASH_LINES = 60
"""Of the report of a JVM that has crashed: the signal, the frame, and the stack of the thread."""
ON_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(3 * SUBMIT_LIMIT_S))


@pytest.fixture(scope="session")
def packed_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job brings along. The wheels of its packages are kept for the next run."""
    out = tmp_path_factory.mktemp("packed") / "environment.zip"
    pack(out, wheels=ROOT / "var" / "wheels", own=ROOT)
    return out


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Two workers of one core; executors find no Python of this environment."""
    path = os.pathsep.join(("/usr/local/bin", "/usr/bin", "/bin"))
    folder = tmp_path_factory.mktemp("standalone")
    with StandaloneCluster(folder, environment={"PATH": path, "HOME": str(folder)}) as standalone:
        yield standalone


@pytest.fixture(scope="session")
def unpacked_environment(tmp_path_factory: pytest.TempPathFactory, packed_environment: Path) -> str:
    """The same, where it lies on every node already: a job does not copy 100 MB to each executor."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(packed_environment) as archive:
        archive.extractall(folder)
    return f"local:{folder}"


class Submitter(msgspec.Struct, frozen=True):
    """Submits modules of the tests to a cluster."""

    cluster: StandaloneCluster
    environment: str

    def run(
        self,
        module: str,
        *arguments: str,
        jars: Sequence[Path] = (),
        conf: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a module to its end, and return its exit code and output."""
        with self.started(module, *arguments, jars=jars, conf=conf, variables=variables) as driver:
            out, err = driver.communicate(timeout=SUBMIT_LIMIT_S)
        return subprocess.CompletedProcess(driver.args, driver.returncode, out, err)

    @contextlib.contextmanager
    def started(
        self,
        module: str,
        *arguments: str,
        jars: Sequence[Path] = (),
        conf: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Iterator[subprocess.Popen[str]]:
        """Start a module; what is left of it at the end is killed. Nobody reads its pipes before: let it log little."""
        submission = Submission(
            master=self.cluster.master_url,
            name=module,
            module=[module, *arguments],
            environment=self.environment,
            python=f"python{this_python()}",
            jars=[*spark_jars(ROOT / "var"), *jars],
            driver_memory="640m",
            executors=2,
            executor_cores=1,
            executor_memory="640m",
            spark_conf={**ON_LOOPBACK, **(conf or {})},
        )
        require_submittable(submission, {})
        with subprocess.Popen(
            submit_command(submission, packaged_spark_home() / "bin" / "spark-submit"),
            env={**driver_variables(), **(variables or {})},
            cwd=self.cluster.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as driver:
            try:
                yield driver
            finally:
                if driver.poll() is None:
                    kill_tree(driver.pid)


def driver_variables() -> dict[str, str]:
    """The environment of a driver: this checkout, and nothing of what pytest sets for Spark."""
    kept: dict[str, Any] = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    return {**kept, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def submitter(cluster: StandaloneCluster, unpacked_environment: str) -> Submitter:
    """Submits to the cluster of the module."""
    return Submitter(cluster, unpacked_environment)


@pytest.fixture(scope="session")
def cluster_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session; never stop it. If its JVM has crashed, which fails what comes after, the report says where."""
    crash = tmp_path_factory.mktemp("jvm") / "crash.log"
    session = local_session("popstream-cluster-tests", crash)
    yield session
    assert not crash.exists(), "\n".join(crash.read_text(errors="replace").splitlines()[:CRASH_LINES])
    session.stop()


@pytest.fixture
def site(cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> OperatedSite:
    """A job on local threads that builds queues, and its commands."""
    from tests.cluster.operated_site import OperatedSite  # noqa: PLC0415 - it imports this module

    return OperatedSite(cluster_spark, kafka, topic_prefix, tmp_path)
