"""Claims: the command line fits each master, with no secret in it; what is wrong is refused before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from connectors.spark_cluster.packed_environment import FOLDER
from connectors.spark_cluster.submission import DeployMode, Submission, require_submittable, submit_command
from popstream.wire.base_errors import Invalid

ON_NODES = f"{FOLDER}:{FOLDER}/popstream/_job"
KUBERNETES = {"spark.kubernetes.container.image": "spark:4.2.0", "spark.kubernetes.file.upload.path": "s3a://b/up"}
JOB: dict[str, Any] = {
    "master": "spark://one:7077",
    "name": "popstream orders",
    "module": ["pipelines.cli.cluster.run_on_cluster", "--checkpoint", "s3a://b/c"],
    "environment": "/job/environment.zip",
    "python": "python3.12",
    "jars": [Path("/jars/a.jar"), Path("/jars/b.jar")],
    "driver_memory": "2g",
    "executors": 3,
    "executor_cores": 2,
    "executor_memory": "4g",
}


def command_of(**changes: Any) -> list[str]:
    submission = Submission(**{**JOB, **changes})
    require_submittable(submission, {"--checkpoint": "s3a://b/c"})
    return submit_command(submission, Path("/spark/bin/spark-submit"))


def options_of(command: list[str]) -> dict[str, str]:
    """The options before the launcher, and each `--conf` by its name."""
    end = next(place for place, word in enumerate(command) if word.endswith("launcher.py"))
    options: dict[str, str] = {}
    for name, value in zip(command[1:end:2], command[2:end:2], strict=True):
        key, _, setting = value.partition("=")
        options.update({key: setting} if name == "--conf" else {name: value})
    return options


def refusals(checkpoint: str = "/data/job", **changes: Any) -> list[str]:
    with pytest.raises(Invalid, match="the job cannot be submitted") as caught:
        require_submittable(Submission(**{**JOB, **changes}), {"--checkpoint": checkpoint, "--tables": None})
    return list(caught.value.details)


def test_a_standalone_cluster_gets_cores_and_the_driver_is_this_python() -> None:
    command = command_of()
    options = options_of(command)
    assert command[0] == "/spark/bin/spark-submit"
    assert command[-3:] == JOB["module"]
    assert (options["--master"], options["--deploy-mode"]) == ("spark://one:7077", "client")
    assert options["--jars"] == "/jars/a.jar,/jars/b.jar"
    assert options["--archives"] == f"/job/environment.zip#{FOLDER}"
    assert options["spark.cores.max"] == "6"
    assert "spark.executor.instances" not in options
    assert options["spark.executorEnv.PYTHONPATH"] == ON_NODES
    assert (options["spark.pyspark.python"], options["spark.pyspark.driver.python"]) == ("python3.12", sys.executable)
    assert "--files" not in options


def test_yarn_runs_the_driver_as_the_executors_if_it_is_asked_to() -> None:
    options = options_of(command_of(master="yarn", deploy_mode=DeployMode.CLUSTER, files=[Path("/etc/job.toml")]))
    assert options["spark.executor.instances"] == "3"
    assert options["spark.pyspark.driver.python"] == "python3.12"
    assert options["spark.yarn.appMasterEnv.PYTHONPATH"] == ON_NODES
    assert options["--files"] == "/etc/job.toml"


def test_kubernetes_runs_the_driver_in_a_pod() -> None:
    options = options_of(
        command_of(master="k8s://https://api:6443", deploy_mode=DeployMode.CLUSTER, spark_conf=KUBERNETES)
    )
    assert options["spark.kubernetes.driverEnv.PYTHONPATH"] == ON_NODES
    assert options["spark.kubernetes.container.image"] == "spark:4.2.0"


def test_nodes_that_have_the_environment_unpacked_get_no_archive() -> None:
    options = options_of(command_of(environment="local:/opt/popstream"))
    assert "--archives" not in options
    assert options["spark.executorEnv.PYTHONPATH"] == "/opt/popstream:/opt/popstream/popstream/_job"


def test_settings_of_spark_replace_the_defaults() -> None:
    assert options_of(command_of())["spark.log.level"] == "ERROR"
    assert options_of(command_of(spark_conf={"spark.log.level": "INFO"}))["spark.log.level"] == "INFO"
    for process in ("driver", "executor"):
        key = f"spark.{process}.extraJavaOptions"
        java = options_of(command_of())[key].split()
        assert java == ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Duser.timezone=UTC"], "as is measured"
        assert options_of(command_of(spark_conf={key: "-Xss4m"}))[key] == "-Xss4m"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"master": "local[2]"}, "--master local[2]: write spark://host:port"),
        ({"master": "spark://one"}, "--master spark://one: write spark://host:port"),
        ({"deploy_mode": DeployMode.CLUSTER}, "standalone clusters run no drivers in Python"),
        ({"master": "k8s://api:6443"}, "spark_conf lacks spark.kubernetes.container.image"),
        ({"spark_conf": {"fs.s3a.endpoint": "x"}}, "belong into hadoop_conf"),
        ({"spark_conf": {"spark.executor.cores": "8"}}, "spark.executor.cores is chosen by"),
        ({"spark_conf": {"spark.ssl.keySecret": "x"}}, "others can read: use hadoop_conf"),
        ({"spark_conf": {"spark.hadoop.fs.s3a.secret.key": "x"}}, "others can read: use hadoop_conf"),
        ({"spark_conf": {"spark.hadoop.fs.azure.account.key.a": "x"}}, "others can read: use hadoop_conf"),
        ({"checkpoint": "s3://b/c"}, "Hadoop's name for S3 is s3a://"),
        ({"checkpoint": "s3a://key:word@b/c"}, "must hold no credentials"),
        ({"checkpoint": "s3a:///c"}, "the URL names no store"),
        ({"checkpoint": "var/job"}, "need an absolute path"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], words: str) -> None:
    (line,) = refusals(**changes)
    assert words in line
    assert "word" not in line.replace("words", "")


def test_all_that_is_wrong_is_listed() -> None:
    wrong = refusals("here", master="k8s://api:6443", deploy_mode=DeployMode.CLUSTER, spark_conf={"cores": "1"})
    assert len(wrong) == 4


@pytest.mark.parametrize("master", ["spark://a:1,b:2", "yarn", "k8s://api:6443", "k8s://https://api"])
@pytest.mark.parametrize(
    "checkpoint", ["/data/job", "file:///data/job", "hdfs:///job", "hdfs://name/job", "s3a://bucket/job"]
)
def test_what_can_work_is_accepted(master: str, checkpoint: str) -> None:
    require_submittable(Submission(**{**JOB, "master": master, "spark_conf": KUBERNETES}), {"--checkpoint": checkpoint})
