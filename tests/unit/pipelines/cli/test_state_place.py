"""Claim: the Spark of a command reaches what the command reads, wherever state and tables are (state_place.py)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from pipelines.cli.cluster import state_place, verify_checkpoint
from pipelines.job_settings import JobSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

S3_JAR, SPARK_JAR = Path("/jars-s3/hadoop-aws.jar"), Path("/jars/delta.jar")


@pytest.fixture
def confs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The settings of each Spark that a command has started."""
    found: list[dict[str, str]] = []

    @contextlib.contextmanager
    def session_of_command(start: Callable[[dict[str, str]], Any]) -> Iterator[Any]:
        yield start({})

    monkeypatch.setattr(state_place, "spark_jars", lambda _: [SPARK_JAR])
    monkeypatch.setattr(state_place, "s3_jars", lambda _: [S3_JAR])
    monkeypatch.setattr(state_place, "session_of_command", session_of_command)
    monkeypatch.setattr(state_place, "cluster_session", lambda _name, _partitions, conf: found.append(conf))
    return found


@pytest.mark.parametrize(
    ("checkpoint", "tables", "s3"),
    [
        ("/data/job", None, []),
        ("/data/job", "/data/tables", []),
        ("s3a://bucket/job", None, [S3_JAR]),
        ("/data/job", "s3a://bucket/tables", [S3_JAR]),
        ("s3a://bucket/job", "/data/tables", [S3_JAR]),
    ],
)
def test_it_has_the_jars_of_s3_if_the_state_or_the_tables_are_there(
    checkpoint: str, tables: str | None, s3: list[Path], confs: list[dict[str, str]]
) -> None:
    with state_place.cluster_spark(JobSettings(), checkpoint, Path("var"), tables=tables):
        pass
    (conf,) = confs
    assert conf["spark.driver.extraClassPath"] == ":".join(map(str, [SPARK_JAR, *s3]))


def test_a_verification_reaches_its_tables(
    confs: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def reached(settings: JobSettings, checkpoint: str, var: Path, **places: Any) -> NoReturn:
        with state_place.cluster_spark(settings, checkpoint, var, **places):
            raise KeyboardInterrupt

    folder = cast("Any", SimpleNamespace(incoming=tmp_path / "incoming"))
    monkeypatch.setattr(verify_checkpoint, "state_place", reached)
    monkeypatch.setattr(
        verify_checkpoint, "run_verification", lambda _folder, _options, inputs: inputs(contextlib.ExitStack(), folder)
    )
    with pytest.raises(KeyboardInterrupt):
        verify_checkpoint.run_verify_checkpoint(
            JobSettings(folder=tmp_path), "/data/job", "s3a://bucket/tables", cast("Any", None), var=tmp_path
        )
    assert str(S3_JAR) in confs[0]["spark.driver.extraClassPath"]
