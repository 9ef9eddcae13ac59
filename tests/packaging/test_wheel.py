"""Claim: the wheel installs into a project that has its own packages named like the job's folders, and brings types.

Method: build the wheel offline, install it without dependencies into an empty virtual environment, and make the
third-party libraries of this environment importable there. A path in a `.pth` file does that: the editable install of
this checkout is another `.pth` file in the same folder, which Python does not read from there.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
JOB_FOLDERS = ("checkpoints", "connectors", "expectations", "pipelines")


class Installed(msgspec.Struct, frozen=True):
    """The wheel, an environment that has it installed, and a user's project beside it."""

    wheel: Path
    bin: Path
    project: Path

    def run(self, *command: str | Path, exit_code: int = 0) -> str:
        """Run a program of the environment as the user would, inside the project; return its output."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "POPSTREAM_"))
        }
        ended = subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.project,
            env={**environment, "PYTHONPATH": str(self.project)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == exit_code, f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout + ended.stderr

    def python(self, program: str) -> Sequence[str]:
        """Run a Python program; return the lines it prints."""
        return self.run("python", "-c", textwrap.dedent(program)).splitlines()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True, timeout=120
    )
    (wheel,) = folder.glob("*.whl")
    environment, project = folder / "environment", folder / "project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=120)
    python = environment / "bin" / "python"
    offline = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", *offline, wheel], check=True, timeout=120
    )
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    (site_packages / "third_party.pth").write_text(f"{Path(msgspec.__file__).parents[1]}\n")
    for name in JOB_FOLDERS:
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text('OWNER = "the user"\n')
    return Installed(wheel, environment / "bin", project)


def test_the_wheel_has_types_and_no_package_named_like_a_folder_of_a_data_project(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
    assert "popstream/py.typed" in names
    assert {name.split("/")[0] for name in names} == {
        "broker_state",
        "popstream",
        f"popstream-{importlib.metadata.version('popstream')}.dist-info",
    }
    for folder in JOB_FOLDERS:
        assert f"popstream/_job/{folder}/__init__.py" in names
    assert "popstream/_job/connectors/jars/ivy.xml" in names
    for file in (ROOT / "pipelines" / "http_api" / "page").iterdir():
        assert f"popstream/_job/pipelines/http_api/page/{file.name}" in names
    assert "popstream/_job/pipelines/web_style/popstream.css" in names
    assert "popstream/_job/pipelines/cluster/scheduler_pools.xml" in names


def test_the_client_and_its_tests_run_in_a_project_with_packages_of_the_same_names(installed: Installed) -> None:
    program = """
        import checkpoints, connectors, expectations, pipelines
        import popstream
        from popstream import Consumer, Producer
        from popstream.testing import MemoryJob

        job = MemoryJob()
        job.write("orders", 0, [b"one"])
        with job.consumer("billing") as consumer:
            (message,) = consumer.pop("orders", 0)
            print(message.value, message.ack().result().reason)
        print(connectors.OWNER, pipelines.OWNER, checkpoints.OWNER, expectations.OWNER)
        print(popstream.__file__)
        """
    acked, owners, file = installed.python(program)
    assert acked == "b'one' OK"
    assert owners == "the user the user the user the user"
    assert Path(file).is_relative_to(installed.bin.parent)


def test_the_command_runs_in_a_project_with_packages_of_the_same_names(installed: Installed) -> None:
    version = importlib.metadata.version("popstream")
    assert installed.run("popstream", "--version") == f"popstream {version}\n"
    assert installed.run("python", "-m", "popstream", "--version") == f"popstream {version}\n"
    assert "Usage: popstream" in installed.run("popstream", "--help")
    # A subcommand imports the modules that it needs when it runs. 3: nothing answers.
    status = installed.run("popstream", "status", "--folder", "nowhere", exit_code=3)
    assert "no job runs in nowhere" in status


def test_every_python_that_the_command_starts_imports_the_modules_of_the_job(installed: Installed) -> None:
    program = """
        import subprocess, sys
        from pathlib import Path
        from popstream import cli

        cli.put_job_code_first()
        from pipelines.process.maintenance import compacted_aside

        print({table.failure for table in compacted_aside(Path("tables"))}, flush=True)
        for folder in ("pipelines", "connectors"):
            # As Spark starts its workers: in the working directory of the job, which `-c` and `-m` would put first.
            subprocess.run([sys.executable, "-c", f"import {folder}; print({folder}.__file__)"], check=True)
        """
    compacted, *files = installed.python(program)
    assert compacted == "{None}"
    job_code = installed.run("python", "-c", "from popstream.cli import JOB_CODE; print(JOB_CODE)").strip()
    assert Path(job_code).name == "_job"
    assert files == [f"{job_code}/{folder}/__init__.py" for folder in ("pipelines", "connectors")]


def test_a_type_checker_sees_the_types_of_the_installed_wheel(installed: Installed, tmp_path: Path) -> None:
    user_file = installed.project / "shop.py"
    user_file.write_text(
        textwrap.dedent(
            """
            import popstream
            from popstream import AsyncConsumer, Consumer, Message, Producer, json_deserializer
            from popstream.testing import MemoryJob

            def untyped(message: Message) -> None: ...

            numbers = Consumer("localhost:9092", group="billing", value_deserializer=json_deserializer(int))
            numbers.run(untyped)
            reveal_type(numbers.pop("orders").messages[0].body)
            reveal_type(AsyncConsumer.of(numbers))
            consumer = Consumer("localhost:9092", group="billing", topics=["orders"])
            reveal_type(consumer.pop("orders"))
            reveal_type(next(iter(consumer)).ack().result())
            reveal_type(Producer("localhost:9092").send("orders", b"one").result().queue_offset)
            reveal_type(MemoryJob().consumer("billing"))
            popstream.Consummer
            """
        )
    )
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull),
            *("--python-executable", installed.bin / "python", "--cache-dir", tmp_path, "shop.py"),
        ],
        cwd=installed.project,
        env={name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "MYPYPATH"}},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    *revealed, mistake, summary = checked.stdout.splitlines()
    assert [line.partition("Revealed type is ")[2].strip('"') for line in revealed] == [
        "int",
        "popstream.async_consumer.AsyncConsumer[int]",
        "popstream.message.PopResult[Any]",
        "popstream.outcome.Outcome",
        "int",
        "popstream.consumer.Consumer[Any]",
    ]
    assert 'Module has no attribute "Consummer"' in mistake
    assert summary.startswith("Found 1 error")
