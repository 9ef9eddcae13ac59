"""`make secure-demo` in small: every check holds, nothing is left running, and a second run begins anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.long]


def test_the_secured_demo_holds_every_check(tmp_path: Path) -> None:
    var = tmp_path / "var"
    var.mkdir()
    (var / "jars").symlink_to(ROOT / "var" / "jars")
    (var / "secure-demo").mkdir()
    (var / "secure-demo" / "left.txt").write_text("by an earlier run")
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.demo.secured_demo", "--messages", "100", "--var", str(var)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "verdict: ok (11 of 11 checks hold)"
    assert len([line for line in lines if line.startswith("  holds: ")]) == 11
    assert done.stderr == ""
    assert not (var / "secure-demo" / "left.txt").exists()
    left = [
        line
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in (line := " ".join(process.info["cmdline"] or ()))
    ]
    assert left == []
