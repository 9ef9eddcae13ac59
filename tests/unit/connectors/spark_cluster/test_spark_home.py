"""Claim: a job is submitted by the Spark that its jars are for, and by no other."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from connectors.spark_cluster.spark_home import chosen_spark_home, packaged_spark_home
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from pathlib import Path


def spark_of(folder: Path, release: str) -> Path:
    (folder / "jars").mkdir()
    (folder / "jars" / f"spark-core_2.13-{release}.jar").touch()
    return folder


def test_without_the_variable_it_is_the_one_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert chosen_spark_home() == packaged_spark_home()
    assert (packaged_spark_home() / "bin" / "spark-submit").is_file()


def test_the_variable_names_another_one_of_the_same_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_of(tmp_path, version("pyspark"))))
    assert chosen_spark_home() == tmp_path


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_of(tmp_path, "3.5.1")))
    with pytest.raises(Invalid, match=rf"has Spark 3\.5\.1: this job needs {version('pyspark')}"):
        chosen_spark_home()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(Invalid, match="does not contain Spark"):
        chosen_spark_home()
