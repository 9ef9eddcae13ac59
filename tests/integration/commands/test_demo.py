"""The demo as a user runs it, in small: of its own messages, of a user's file, and interrupted half-way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CODE = """
import sys, json, pathlib
from pipelines.demo import run_demo
options = json.loads(sys.argv[1])
if "messages_file" in options:
    options["messages_file"] = pathlib.Path(options["messages_file"])
sys.exit(run_demo(var=pathlib.Path("var"), json_output=True, **options))
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with the jars of the checkout, and nothing else."""
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "jars").symlink_to(ROOT / "var" / "jars")
    return tmp_path


def start(here: Path, **options: object) -> subprocess.Popen[str]:
    # A file: PySpark takes `python -c` for a doctest, and ends it.
    script = here / "script.py"
    script.write_text(CODE)
    with (here / "said").open("w") as said:
        return subprocess.Popen(
            [sys.executable, str(script), json.dumps(options)],
            cwd=here,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )


def finish(here: Path, **options: object) -> tuple[int, dict[str, Any]]:
    process = start(here, **options)
    out, _ = process.communicate(timeout=550)
    assert out, (here / "said").read_text()
    printed = json.loads(out)
    assert printed == json.loads((here / "var" / "demo" / "summary.json").read_text())
    return process.returncode, printed


def left_over(here: Path) -> list[str]:
    """Command lines of processes that work below `here`."""
    found = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(here) in line:
            found.append(line[:200])
    return found


@pytest.mark.parametrize(
    ("messages", "poison", "rejected", "refused"),
    [(600, 1, 60, 30), pytest.param(2000, 2, 200, 100, marks=pytest.mark.long)],
)
def test_the_demo_in_small_holds_every_check(
    here: Path, messages: int, poison: int, rejected: int, refused: int
) -> None:
    code, summary = finish(here, messages_count=messages, rejected_count=rejected, refused_count=refused)
    assert summary["checks_failed"] == []
    assert summary["expectations_not_met"] == []
    assert (code, summary["verdict"]) == (0, "ok")
    assert (summary["messages"], summary["groups"], summary["lost"], summary["double_leased"]) == (
        messages,
        3 + 1,
        0,
        0,
    )
    assert (summary["acked"], summary["dead_lettered"]) == (4 * messages - poison, poison)
    assert summary["redelivered"] > 0
    assert (summary["rejected"], summary["expectations_failed"]) == (rejected, 0)
    assert summary["refused"] >= refused
    assert summary["memory_mib"]["jvm"] < 1536
    assert summary["memory_mib"]["python"] < 400
    assert summary["memory_mib"]["with_suites"] < 700
    assert left_over(here) == []


@pytest.mark.long
def test_a_file_of_a_user_arrives_line_by_line(here: Path) -> None:
    lines = [b"first", b"", b"\xff\xfe not UTF-8", b"x" * 1_000_000, b"first", b'{"poison":true}', b"", b"ends with \r"]
    (here / "mine.txt").write_bytes(b"\r\n".join(lines) + b"\nlast, without an end")
    code, summary = finish(here, messages_file="mine.txt", queues=3, groups=2, rejected_count=20, refused_count=20)
    assert summary["checks_failed"] == []
    assert (code, summary["verdict"], summary["messages"]) == (0, "ok", 9)
    assert (summary["acked"], summary["lost"], summary["dead_lettered"]) == (3 * 9, 0, 0)


@pytest.mark.long
def test_ctrl_c_stops_everything(here: Path) -> None:
    process = start(here, messages_count=50_000)
    said = here / "said"
    deadline = time.monotonic() + 200
    while "processes" not in said.read_text() and time.monotonic() < deadline:
        assert process.poll() is None, said.read_text()
        time.sleep(0.2)
    time.sleep(2)
    assert len(left_over(here)) > 3
    process.send_signal(signal.SIGINT)
    assert process.wait(180) == 130, said.read_text()
    assert process.stdout is not None
    assert process.stdout.read() == ""
    process.stdout.close()
    assert left_over(here) == []
