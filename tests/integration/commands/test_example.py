"""Claim: the example under docs/examples does what it says: the tables account for every delivery.

Method: it is played as a user plays it; its worker is killed in the middle and started again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLAY = ROOT / "docs" / "examples" / "coffee_bar" / "play.py"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.mark.long
def test_every_order_is_done_once_and_every_extra_delivery_is_explained(tmp_path: Path) -> None:
    command = [sys.executable, str(PLAY), "--folder", str(tmp_path / "job"), "--var", str(ROOT / "var")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done_count: 1, orders: 2000\n" in done.stdout
    assert "its process was killed" in done.stdout
    assert "its handler failed" in done.stdout


def test_the_readme_shows_the_worker_as_it_is() -> None:
    worker = "".join((PLAY.parent / "worker.py").read_text().split())
    (shown,) = [part for part in (ROOT / "README.md").read_text().split("```python\n") if "def brew" in part]
    code = shown.split("```")[0]
    brew, serve = code[code.index("def brew") :].split("\n\n")
    assert "".join(brew.split()) in worker
    assert "".join(serve.split()) in worker
