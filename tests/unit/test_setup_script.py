"""The preflight of scripts/setup.sh: every refusal is one line that says what to do, and nothing is left running."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup.sh"
TOOLS = ["awk", "bash", "cut", "dirname", "env", "head", "sed"]


class Machine:
    """A PATH that holds only what a test put there."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        self.home = root / "home"
        self.home.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.bin / tool).symlink_to(found)
        self.program("df", 'echo "Filesystem 1024-blocks Used Available Capacity Mounted"; echo "d 9 9 99999999 1% /"')
        self.python("python3", "3.11")
        self.java("17.0.15")

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def python(self, name: str, version: str, *, has_ensurepip: bool = True) -> None:
        code = "exit 0" if has_ensurepip else "exit 1"
        self.program(name, f'case "$2" in *version_info*) echo {version} ;; *) {code} ;; esac')

    def java(self, version: str) -> None:
        self.program("java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")

    def check(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(SETUP), "--check-only"],
            env={"PATH": str(self.bin), "HOME": str(self.home), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def refusal(self, **environment: str) -> str:
        result = self.check(**environment)
        assert result.returncode != 0
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        return line


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_fit_machine_is_accepted(machine: Machine) -> None:
    result = machine.check()
    assert (result.returncode, result.stderr) == (0, "")


def test_no_python(machine: Machine) -> None:
    (machine.bin / "python3").unlink()
    assert "install Python 3.11, 3.12 or 3.13" in machine.refusal()


@pytest.mark.parametrize(("version", "verdict"), [("3.9", "too old"), ("3.14", "too new"), ("2.7", "too old")])
def test_other_python(machine: Machine, version: str, verdict: str) -> None:
    machine.python("python3", version)
    line = machine.refusal()
    assert f"Python {version} is {verdict}" in line
    assert "install Python 3.11, 3.12 or 3.13" in line


def test_shim_that_does_not_run_is_passed_over(machine: Machine) -> None:
    machine.program("python3.13", "echo 'command not found' >&2; exit 127")
    machine.python("python3.12", "3.12")
    assert "python3.12 is 3.12" in machine.check().stdout


def test_named_python_is_the_only_one_tried(machine: Machine) -> None:
    machine.python("old", "3.10")
    assert "Python 3.10 is too old" in machine.refusal(PYTHON="old")


def test_python_without_ensurepip(machine: Machine) -> None:
    machine.python("python3", "3.12", has_ensurepip=False)
    assert "python3.12-venv" in machine.refusal()


def test_no_java(machine: Machine) -> None:
    (machine.bin / "java").unlink()
    line = machine.refusal()
    assert "no Java found" in line
    assert "install a Java from 17 to 21" in line


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("1.8.0_402", "Java 8 is too old"), ("11.0.2", "Java 11 is too old"), ("25", "Java 25 is too new")],
)
def test_other_java(machine: Machine, version: str, verdict: str) -> None:
    machine.java(version)
    line = machine.refusal()
    assert verdict in line
    assert "install a Java from 17 to 21" in line


@pytest.mark.parametrize("version", ["17", "17.0.15", "21-ea", "21.0.4"])
def test_fit_java(machine: Machine, version: str) -> None:
    machine.java(version)
    assert machine.check().returncode == 0


def test_java_home_goes_before_path(machine: Machine) -> None:
    assert "at JAVA_HOME" in machine.refusal(JAVA_HOME=str(machine.home))


def test_java_that_says_nothing(machine: Machine) -> None:
    machine.program("java", "exit 1")
    assert "install a Java from 17 to 21" in machine.refusal()


def test_too_little_disk(machine: Machine) -> None:
    machine.program("df", 'echo "Filesystem 1024-blocks"; echo "d 9 9 1048576 99% /"')
    line = machine.refusal()
    assert "1024 MiB are free" in line
    assert "4 GiB are needed" in line


def test_checking_leaves_nothing_behind(machine: Machine, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "scripts").mkdir(parents=True)
    shutil.copy(SETUP, project / "scripts" / "setup.sh")
    before = sorted(project.rglob("*"))
    script = project / "scripts" / "setup.sh"
    environment = {"PATH": str(machine.bin), "HOME": os.devnull}
    checked = subprocess.run(["bash", str(script), "--check-only"], env=environment, capture_output=True, check=False)
    assert checked.returncode == 0
    assert sorted(project.rglob("*")) == before
