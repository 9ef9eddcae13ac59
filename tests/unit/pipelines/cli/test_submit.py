"""Claims: `popstream submit` refuses in one line what cannot work, and prints a line that a shell understands."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from connectors.jars.resolve import S3, read_sums
from connectors.spark_cluster.packed_environment import FACTS_FILE, EnvironmentFacts, this_python
from pipelines import printed_commands
from pipelines.cli.app import app
from pipelines.cli.cluster import run_on_cluster
from pipelines.cli.cluster.submit_commands import DEFAULT_ENVIRONMENT
from popstream import __version__
from popstream.wire.base_errors import Fenced

if TYPE_CHECKING:
    from typer.testing import Result

ROOT = Path(__file__).parents[4]
MASTER = "spark://127.0.0.1:7077"
SECRET = "top-secret-value"  # noqa: S105 - it opens nothing
SETTINGS = f"""
bootstrap_servers = "kafka:9092"
topic_prefix = "orders"
executors = 4

[hadoop_conf]
"fs.s3a.access.key" = "AKIA"
"fs.s3a.secret.key" = "{SECRET}"
"""


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use neither settings of the machine nor the folder of the project."""
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(SETTINGS)


def packed(facts: EnvironmentFacts) -> str:
    with zipfile.ZipFile("environment.zip", "w") as archive:
        archive.writestr(FACTS_FILE, msgspec.json.encode(facts))
    return "environment.zip"


FITTING = EnvironmentFacts(__version__, this_python(), "pure")


def submit(*arguments: str, facts: EnvironmentFacts = FITTING, checkpoint: str = "/data/job") -> Result:
    chosen = ["--master", MASTER, "--checkpoint", checkpoint, "--environment", packed(facts), "--print"]
    return CliRunner().invoke(
        app,
        ["submit", *chosen, "--settings", "job.toml", "--var", str(ROOT / "var"), *arguments],
        env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
    )


def test_the_printed_line_starts_the_module_with_the_settings_file_and_shows_no_secret() -> None:
    done = submit()
    assert done.exit_code == 0, done.stderr
    words = shlex.split(done.stdout)
    assert words[0] == f"PYTHONPATH={ROOT}"
    assert words[1].endswith("/bin/spark-submit")
    driver = words.index(run_on_cluster.__name__)
    assert words[driver:] == [
        *(run_on_cluster.__name__, "--checkpoint", "/data/job"),
        *("--settings", str(Path("job.toml").absolute())),
        *("--environment", str(Path("environment.zip").absolute()), "--var", str(ROOT / "var")),
    ]
    assert Path(words[driver - 1]).is_file()
    assert "spark.cores.max=4" in words
    assert SECRET not in done.output
    assert "AKIA" not in done.output


def test_every_argument_of_the_line_is_one_of_the_driver() -> None:
    words = shlex.split(submit("--tables", "/data/tables", "--take-over").stdout)
    chosen = run_on_cluster._parser().parse_args(words[words.index("pipelines.cli.cluster.run_on_cluster") + 1 :])
    assert (chosen.checkpoint, chosen.tables, chosen.take_over) == ("/data/job", "/data/tables", True)
    refused = submit("--tables", "tables")
    assert refused.exit_code == 2
    assert "--tables tables: executors need an absolute path" in " ".join(refused.stderr.split())


def test_the_driver_names_the_command_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the options that it does not need itself, or else it would be submitted with another environment."""

    def end(*_: object) -> None:
        raise Fenced("start it with `popstream up --take-over`")

    monkeypatch.setattr(printed_commands, "_options", {})
    monkeypatch.setattr(run_on_cluster, "configure_logs", lambda *_, **__: None)
    monkeypatch.setattr(run_on_cluster, "look_early", lambda *_: None)  # it would ask a Kafka
    monkeypatch.setattr(run_on_cluster, "cluster_session", end)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = shlex.split(submit("--environment", "local:/opt/a b", "--python", "python3.11").stdout)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert run_on_cluster.main(words[words.index(run_on_cluster.__name__) + 1 :]) == 2
    again = shlex.split(said.getvalue().split("`popstream ")[1].rstrip("`\n"))
    assert again == [
        *("submit", "--take-over", "--checkpoint", "/data/job"),
        *("--environment", "local:/opt/a b", "--python", "python3.11"),
        *("--settings", str(Path("job.toml").absolute()), "--var", str(ROOT / "var")),
    ]


def test_an_environment_that_needs_no_option_is_not_named() -> None:
    Path(packed(FITTING)).rename(DEFAULT_ENVIRONMENT)
    words = shlex.split(submit("--environment", str(DEFAULT_ENVIRONMENT)).stdout)
    assert not {"--environment", "--python"} & {*words}


def test_the_line_is_one_for_a_shell() -> None:
    line = submit("--environment", "local:/opt/a b").stdout
    echoed = subprocess.run(
        ["bash", "-c", line.replace(" ", " printf '%s\\n' ", 1)], capture_output=True, text=True, check=True
    )
    assert "spark.executorEnv.PYTHONPATH=/opt/a b:/opt/a b/popstream/_job" in echoed.stdout.splitlines()


def test_a_driver_on_a_node_gets_the_settings_file_or_finds_its_own() -> None:
    yarn = ("--master", "yarn", "--deploy-mode", "cluster")
    words = shlex.split(submit(*yarn).stdout)
    assert words[words.index("--files") + 1] == str(Path("job.toml").absolute())
    assert words[words.index("--settings") + 1] == "job.toml"
    assert words[0].endswith("/bin/spark-submit")
    words = shlex.split(submit(*yarn, "--driver-settings", "/etc/popstream/job.toml").stdout)
    assert "--files" not in words
    assert words[words.index("--settings") + 1] == "/etc/popstream/job.toml"


def test_a_checkpoint_on_s3_brings_its_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jars = tmp_path / "image" / "jars"
    monkeypatch.setenv("POPSTREAM_JARS", str(jars))
    for name in [*read_sums(ROOT / "connectors" / "jars" / "sha256.txt")]:
        (jars / name).parent.mkdir(parents=True, exist_ok=True)
        (jars / name).touch()
    missing = submit(checkpoint="s3a://bucket/job")
    assert missing.exit_code == 2
    assert "run `make s3-jars`" in missing.stderr
    for name in read_sums(S3.sums_file):
        (tmp_path / "image" / "jars-s3" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "image" / "jars-s3" / name).touch()
    assert "/hadoop-aws-3.5.0.jar" in submit(checkpoint="s3a://bucket/job").stdout
    assert "/hadoop-aws-3.5.0.jar" not in submit().stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--master", "local[2]"), "--master local[2]: write spark://host:port, yarn, or k8s://host:port"),
        (("--checkpoint", "var/job"), "--checkpoint var/job: executors need an absolute path"),
        (("--deploy-mode", "remote"), "Invalid value for '--deploy-mode'"),
        (("--environment", "none.zip"), "there is no none.zip: make one with `popstream package --out none.zip`"),
        (("--settings", "none.toml"), "there is no settings file none.toml"),
        (("--var", "nowhere"), "run `make setup`"),
    ],
)
def test_wrong_options_are_refused_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    refused = submit(*arguments)
    assert refused.exit_code == 2
    assert words in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.output


def test_an_environment_of_another_popstream_or_python_is_refused() -> None:
    refused = submit(facts=EnvironmentFacts("0.0.9", "3.99", "pure"))
    assert refused.exit_code == 2
    assert "make it again with `popstream package" in refused.stderr
    assert "it holds popstream 0.0.9" in refused.stderr
    assert "it is for Python 3.99" in refused.stderr


def test_without_a_kafka_and_with_variables_that_a_node_does_not_see_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("job.toml").write_text('topic_prefix = "orders"')
    refused = submit()
    assert refused.exit_code == 2
    assert "needs an existing Kafka" in refused.stderr
    monkeypatch.setenv("POPSTREAM_BOOTSTRAP_SERVERS", "kafka:9092")
    assert submit().exit_code == 0
    refused = submit("--master", "yarn", "--deploy-mode", "cluster")
    assert refused.exit_code == 2
    assert "POPSTREAM_BOOTSTRAP_SERVERS" in refused.stderr
    assert "POPSTREAM_VAR" not in refused.stderr


def test_settings_without_effect_are_named_and_tables_that_would_be_elsewhere_are_refused() -> None:
    Path("job.toml").write_text(
        'bootstrap_servers = "kafka:9092"\ntables = "/data/tables"\nmaintain_interval_s = 3600\n'
        "snapshot_interval_s = 0\n[audit_retention_days]\noperations = 30\n"
    )
    refused = submit()
    assert refused.exit_code == 2
    assert "name the place of this job's tables with --tables" in refused.stderr
    accepted = submit("--tables", "/data/tables")
    assert accepted.exit_code == 0
    said = "has no effect on a cluster: while the job is stopped, `popstream maintain` does it"
    assert accepted.stderr.splitlines() == [
        f"popstream: audit_retention_days {said} in tables that are in a folder",
        f"popstream: maintain_interval_s {said} in tables that are in a folder",
    ]
    assert len(accepted.stdout.splitlines()) == 1, "the line for a shell is as it was"


def test_package_says_what_it_lacks(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["package", "--wheel", str(tmp_path / "other-1.0-py3-none-any.whl")])
    assert refused.exit_code == 2
    assert "is not a wheel of popstream" in refused.stderr
    assert not Path("popstream-environment.zip").exists()
