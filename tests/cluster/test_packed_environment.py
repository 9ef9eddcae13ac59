"""Claims: the packed environment needs no network once its wheels are there, has the same bytes each time, and holds
what executors import and no Spark."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING

import pytest

from broker_state import compiled_form
from broker_state.compiled_form import build_folder
from connectors.spark_cluster.packed_environment import pack, read_facts, this_python
from popstream import __version__
from popstream.wire.base_errors import Invalid, Unavailable
from tests.cluster.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip find nothing but files: nothing listens on port 9."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.mark.usefixtures("no_index")
def test_a_second_packing_needs_no_network_and_gives_the_same_bytes(packed_environment: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    pack(again, wheels=ROOT / "var" / "wheels", own=ROOT)
    assert again.read_bytes() == packed_environment.read_bytes()


def test_it_holds_the_code_and_its_packages_but_no_spark(packed_environment: Path) -> None:
    with zipfile.ZipFile(packed_environment) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {"popstream", "broker_state", "msgspec", "xxhash", "pyarrow", "numpy", "kafka", "structlog"} <= tops
    assert {"pyspark", "py4j", "bin", "duckdb", "great_expectations"} & tops == set()
    assert "popstream/_job/pipelines/job_settings.py" in names
    assert [name for name in names if name.endswith((".pyc", "direct_url.json"))] == []
    kernel = "compiled" if build_folder().is_dir() else "pure"
    assert read_facts(packed_environment) == (facts := read_facts(packed_environment))
    assert (facts.popstream, facts.python, facts.kernel) == (__version__, this_python(), kernel)
    library = f"var/kernel/{build_folder().name}/{compiled_form.GROUP}__mypyc{compiled_form.EXTENSION}"
    assert (library in names) == (kernel == "compiled")


@pytest.mark.usefixtures("no_index")
def test_without_wheels_and_network_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "environment.zip"
    with pytest.raises(Unavailable, match="is this machine online") as caught:
        pack(out, wheels=tmp_path / "wheels", own=ROOT)
    assert caught.value.details
    assert not out.exists()


def test_what_is_no_packed_environment_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"there is no .*popstream package --out"):
        read_facts(tmp_path / "none.zip")
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("facts.json", json.dumps({}))
    with pytest.raises(Invalid, match=r"is not a packed environment .*popstream package --out"):
        read_facts(other)
    other.write_text("text")
    with pytest.raises(Invalid, match="is not a packed environment"):
        read_facts(other)


def test_a_wheel_of_another_project_and_a_folder_without_one_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other-1.0-py3-none-any.whl"
    other.touch()
    wheels = ROOT / "var" / "wheels"
    with pytest.raises(Invalid, match="is not a wheel of popstream"):
        pack(tmp_path / "environment.zip", wheels=wheels, own=other)
    with pytest.raises(Invalid, match="name that wheel with --wheel"):
        pack(tmp_path / "environment.zip", wheels=wheels, own=tmp_path)
