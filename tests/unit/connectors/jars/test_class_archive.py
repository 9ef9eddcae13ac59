"""A class archive is used by the Java and with the jars that it was made for, and by no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.jars.class_archive import class_archive, flag_to_make, flags_to_use


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that is only looked at."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def _jars(folder: Path, *names: str) -> list[Path]:
    return [folder / "jars" / "kafka" / name for name in names]


@pytest.mark.usefixtures("java_home")
def test_it_is_used_once_it_exists(tmp_path: Path) -> None:
    jars = _jars(tmp_path, "a.jar")
    assert flags_to_use("kafka", jars) == []
    archive = class_archive("kafka", jars)
    assert archive.parent == tmp_path / "jars" / "classes"
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert flags_to_use("kafka", jars) == [f"-XX:SharedArchiveFile={archive}"]
    assert flag_to_make(archive) == f"-XX:ArchiveClassesAtExit={archive}"


def test_it_is_of_one_program_one_list_of_jars_and_one_java(tmp_path: Path, java_home: Path) -> None:
    jars = _jars(tmp_path, "a.jar", "b.jar")
    names = {class_archive("kafka", jars), class_archive("spark", jars), class_archive("kafka", jars[:1])}
    names.add(class_archive("kafka", jars[::-1]))  # the order is that of the class path
    (java_home / "bin" / "java").unlink()
    (java_home / "bin" / "java").write_text("another")
    (java_home / "bin" / "java").chmod(0o755)
    names.add(class_archive("kafka", jars))
    assert len(names) == 5


def test_without_jars_there_is_none() -> None:
    assert flags_to_use("spark", []) == []
