"""docs/questions.md: each command of the page gives the output that the page shows."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import CONSUME_QUEUE
from pipelines.cli.app import app
from popstream.wire.command import Policy
from tests.support.delta_files import append_audit_rows, append_rows, create_table
from tests.support.in_process.replayed_log import ReplayedLog
from tests.support.kernel_history import NOON_MS, KernelHistory
from tests.support.slow_handlers import slow_handlers
from tests.support.unit_rows import unit_row

PAGE = Path(__file__).parents[4] / "docs" / "questions.md"
BLOCK = re.compile(r"^```console\n\$ popstream (.*)\n((?:(?!```).*\n)*)```", re.MULTILINE)
EXAMPLES = BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def scene() -> KernelHistory:
    """The history that the page describes."""
    history = KernelHistory(group="billing")
    history.do(0, Policy(v=1, topic="orders", queue_id=0, group="billing", back_off_ms=[5_000, 60_000]))
    first = history.pop(1, "worker-1")
    history.change(3, "worker-2", history.pop(2, "worker-2"), 0, 1, release="back_off", cause="KeyError: 'price'")
    history.change(10, "worker-2", history.pop(9, "worker-2"), 0, 1, release="back_off", cause="KeyError: 'price'")
    history.reject(12, "worker-2", history.pop(11, "worker-2"), 2, "no such customer")
    again = history.pop(36.5, "worker-2")
    history.ack(38.1, "worker-1", first)
    history.ack(39, "worker-2", again)
    history.pop(40, "worker-3", 3, invisible_s=60)
    return history


SLOW = slow_handlers(group="billing")
"""The other scene that the page describes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("questions"), scene())


@pytest.fixture(scope="module")
def slow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("slow"), SLOW)


def written(folder: Path, history: KernelHistory) -> Path:
    for name, rows in history.tables().items():
        create_table(folder / "delta", name)
        append_audit_rows(folder / "delta", name, rows)
    create_table(folder / "delta", "consume_queue")
    units = [unit_row("orders", offset, store_time_ms=NOON_MS - 500) for offset in range(10)]
    append_rows(folder / "delta", "consume_queue", pa.Table.from_pylist(units, schema=arrow_schema(CONSUME_QUEUE)))
    return folder


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 15


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command[:40] for command, _ in EXAMPLES])
def test_a_command_gives_what_the_page_shows(
    folder: Path, slow_folder: Path, command: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr("pipelines.cli.tables.why.time", lambda: NOON_MS / 1000 + 45)
    if command.startswith(("recommend", "what-if")):
        folder = slow_folder
        ReplayedLog(SLOW.records).patch(monkeypatch)
    done = CliRunner().invoke(app, [*shlex.split(command), "--folder", str(folder)], env={"TERM": "dumb"})
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == output
