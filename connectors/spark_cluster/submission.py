"""The `spark-submit` command of a job, for each master that it can run on.

| deploy mode | driver | executors |
|---|---|---|
| client | a process here: this Python, this code | Python of the nodes, the packed environment |
| cluster | on a node, as the executors | the same |

Nothing secret is on the command line, which every user of the machine can read.
"""

from __future__ import annotations

import re
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from connectors.spark_cluster.packed_environment import FOLDER
from connectors.spark_cluster.redaction import DEFAULT_RULE
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LAUNCHER", "UNPACKED", "DeployMode", "Submission", "plain_line", "require_submittable", "submit_command"]

LAUNCHER: Final = Path(__file__).with_name("launcher.py")
UNPACKED: Final = "local:"
"""Spark's scheme for what every node has."""

_MASTERS: Final = re.compile(r"spark://[^/\s]+:\d+(,[^/\s]+:\d+)*|yarn|k8s://(https?://)?[^/\s]+(:\d+)?")
_SECRET: Final = re.compile(DEFAULT_RULE)
_HADOOP: Final = "spark.hadoop."
"""Names of secrets follow no rule there, such as `fs.azure.account.key.NAME`: none is for a command line."""

_OURS: Final = frozenset(
    (
        *("spark.master", "spark.submit.deployMode", "spark.jars", "spark.archives", "spark.files"),
        *("spark.pyspark.python", "spark.pyspark.driver.python", "spark.driver.memory", "spark.executor.memory"),
        *("spark.executor.cores", "spark.executor.instances", "spark.cores.max", "spark.executorEnv.PYTHONPATH"),
        *("spark.yarn.appMasterEnv.PYTHONPATH", "spark.kubernetes.driverEnv.PYTHONPATH", "spark.app.name"),
    )
)
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC"
"""The JVMs move rows and compile new plans: the second compiler and the threads of other collectors cost more than
they save, on executors of one core. `python -m tests.benchmarks cluster` measures with it, too."""
_DEFAULTS: Final = {
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    # As in connectors/delta/log4j2.properties, which would reach executors after they have begun to log.
    "spark.log.level": "ERROR",
    "spark.executor.syncLogLevel.enabled": "true",
}
"""What `spark_conf` may replace."""

_OF_KUBERNETES: Final = "spark.kubernetes.container.image"
_UPLOADS: Final = "spark.kubernetes.file.upload.path"


class DeployMode(StrEnum):
    """Where the driver of a job runs."""

    CLIENT = "client"
    CLUSTER = "cluster"


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job for a cluster.

    Attributes:
        master: `spark://host:port`, `yarn` or `k8s://host:port`.
        deploy_mode: Where the driver runs: `client`, here; `cluster`, on a node of the cluster.
        name: Name of the job in the cluster.
        module: The module that the driver runs, and its arguments.
        environment: The packed environment; `local:/path` is the folder into which it was unpacked on every node.
        python: Command that starts Python on the nodes, of the version that the environment is for.
        jars: Jars for driver and executors.
        files: Files that a driver on a node finds in its working directory.
        driver_memory: Heap of the driver's JVM, as in `1g`.
        executors: Number of executors.
        executor_cores: Cores of each executor.
        executor_memory: Heap of each executor, as in `1g`.
        spark_conf: More settings of Spark.
    """

    master: str
    deploy_mode: DeployMode = DeployMode.CLIENT
    name: str
    module: Sequence[str]
    environment: str
    python: str
    jars: Sequence[Path]
    files: Sequence[Path] = ()
    driver_memory: str
    executors: int
    executor_cores: int
    executor_memory: str
    spark_conf: Mapping[str, str] = {}


def require_submittable(submission: Submission, places: Mapping[str, str | None]) -> None:
    """Check what can be wrong before anything is started.

    Args:
        submission: The job.
        places: Paths or URLs of its files, by the option that names them.

    Raises:
        Invalid: Its details list all that is wrong.
    """
    wrong = _wrong_master(submission)
    wrong += [text for option, place in places.items() if place is not None for text in _wrong_place(option, place)]
    for key in sorted(submission.spark_conf):
        if not key.startswith("spark."):
            wrong.append(f"spark_conf: {key} does not begin with spark.; settings of Hadoop belong into hadoop_conf")
        elif key.startswith(_HADOOP) or _SECRET.search(key):
            wrong.append(f"spark_conf: {key} would be on a command line that others can read: use hadoop_conf")
        elif key in _OURS:
            wrong.append(f"spark_conf: {key} is chosen by the command or by another setting")
    if wrong:
        message = "the job cannot be submitted:"
        raise Invalid(message, subject=submission.master, details=wrong)


def _wrong_master(submission: Submission) -> list[str]:
    master, in_cluster = submission.master, submission.deploy_mode == DeployMode.CLUSTER
    if not _MASTERS.fullmatch(master):
        return [f"--master {master}: write spark://host:port, yarn, or k8s://host:port"]
    if master.startswith("spark://") and in_cluster:
        return ["--deploy-mode cluster: Spark's standalone clusters run no drivers in Python; use client"]
    if master.startswith("k8s://"):
        needed = [_OF_KUBERNETES, *([_UPLOADS] if in_cluster else [])]
        return [f"spark_conf lacks {key}" for key in needed if key not in submission.spark_conf]
    return []


def _wrong_place(option: str, place: str) -> list[str]:
    url = urlsplit(place)
    if url.scheme in {"s3", "s3n"}:
        return [f"{option} {place}: Hadoop's name for S3 is s3a://"]
    if url.username or url.password or url.query:
        return [f"{option}: a URL must hold no credentials; they belong into hadoop_conf"]
    if url.scheme and url.scheme != "file":
        # Of HDFS the cluster may have a default.
        is_whole = url.netloc or url.scheme == "hdfs"
        return [] if is_whole else [f"{option} {place}: the URL names no store, as in {url.scheme}://name/path"]
    if not url.path.startswith("/"):
        return [f"{option} {place}: executors need an absolute path that all nodes share, or a URL"]
    return []


def submit_command(submission: Submission, spark_submit: Path) -> list[str]:
    """Return the command line.

    Args:
        submission: The job, as `require_submittable` accepts it.
        spark_submit: The program `spark-submit`.
    """
    job = submission
    command = [str(spark_submit), "--master", job.master, "--deploy-mode", job.deploy_mode, "--name", job.name]
    command += ["--driver-memory", job.driver_memory, "--executor-memory", job.executor_memory]
    command += ["--jars", ",".join(str(jar) for jar in job.jars)]
    if not job.environment.startswith(UNPACKED):
        command += ["--archives", f"{job.environment}#{FOLDER}"]
    if job.files:
        command += ["--files", ",".join(str(file) for file in job.files)]
    for key, value in {**_conf(job), **job.spark_conf}.items():
        command += ["--conf", f"{key}={value}"]
    return [*command, str(LAUNCHER), *job.module]


def _conf(job: Submission) -> dict[str, str]:
    unpacked = job.environment.removeprefix(UNPACKED) if job.environment.startswith(UNPACKED) else FOLDER
    python_path = f"{unpacked}:{unpacked}/popstream/_job"
    conf = {
        **_DEFAULTS,
        "spark.executor.cores": str(job.executor_cores),
        "spark.pyspark.python": job.python,
        "spark.pyspark.driver.python": sys.executable if job.deploy_mode == DeployMode.CLIENT else job.python,
        "spark.executorEnv.PYTHONPATH": python_path,
    }
    if job.master.startswith("spark://"):
        # Of a standalone cluster an application gets as many executors as fit into its cores.
        conf["spark.cores.max"] = str(job.executors * job.executor_cores)
    else:
        conf["spark.executor.instances"] = str(job.executors)
    if job.deploy_mode == DeployMode.CLUSTER:
        place = "spark.yarn.appMasterEnv" if job.master == "yarn" else "spark.kubernetes.driverEnv"
        conf[f"{place}.PYTHONPATH"] = python_path
    return conf


def plain_line(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return a line for a shell that does the same.

    >>> plain_line(["spark-submit", "--name", "my job"], {"PYTHONPATH": "/opt/job"})
    "PYTHONPATH=/opt/job spark-submit --name 'my job'"
    """
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(command)])
