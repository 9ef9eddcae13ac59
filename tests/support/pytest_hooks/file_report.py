"""Print one line per test file: outcomes, seconds, and the first sentence of the file's docstring.

`tests/conftest.py` registers it when pytest runs neither quietly nor verbosely. It replaces the dots.
With pytest-xdist, the controller prints a file's line as soon as the last of its tests has run, on whichever worker.
"""

from __future__ import annotations

import ast
import re
import shutil
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from _pytest.terminal import TerminalReporter

__all__ = ["FileReport", "first_sentence"]

PATH_WIDTH_MAX = 72
SENTENCE_WIDTH_MAX = 110
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
"""In the order in which a line counts them."""


@dataclass
class _File:
    """The tests of one file."""

    missing: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    duration_s: float = 0.0
    failed: list[str] = field(default_factory=list)


class FileReport:
    """A pytest plugin that prints a line when all tests of a file are done.

    Args:
        root: Folder that paths of test files are relative to.
        terminal: Where the lines go.
    """

    def __init__(self, root: Path, terminal: TerminalReporter) -> None:
        self._root = root
        self._terminal = terminal
        self._files: dict[str, _File] = {}
        self._path_width = 0
        self._is_progress = False
        terminal.showfspath = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the tests of each file; with xdist, the controller collects nothing."""
        self.expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Count the tests of each file once: every worker collects the same ones."""
        if not self._files:
            self.expect(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Keep a test from the terminal's progress, which would print a dot; the summaries still name its outcome."""
        outcome = _outcome_of(report)
        return (outcome, "", "") if self._is_progress and outcome else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None]:
        """Add a phase of a test to its file, and print the file with its last one."""
        self._is_progress = True
        try:
            yield
        finally:
            self._is_progress = False
        self.add(report)

    def add(self, report: pytest.TestReport) -> None:
        """Add a phase of a test to its file, and print the file with its last one."""
        path = _path_of(report.nodeid)
        file = self._files.setdefault(path, _File())
        file.duration_s += report.duration
        if outcome := _outcome_of(report):
            file.outcomes[outcome] += 1
            if report.failed:
                file.failed.append(report.nodeid)
        if report.when == "teardown":
            file.missing -= 1
            if file.missing == 0:
                self._print(path)

    def pytest_sessionfinish(self) -> None:
        """Print the files whose tests have not all run: a worker has crashed, or Ctrl-C."""
        for path, file in self._files.items():
            if file.missing > 0 and file.outcomes:
                self._print(path)

    def expect(self, node_ids: Iterable[str]) -> None:
        """Count the tests of each file."""
        for node_id in node_ids:
            self._files.setdefault(_path_of(node_id), _File()).missing += 1
        self._path_width = min(max(map(len, self._files), default=0), PATH_WIDTH_MAX)

    def _print(self, path: str) -> None:
        file = self._files[path]
        counts = ", ".join(f"{file.outcomes[name]} {name}" for name in OUTCOMES if file.outcomes[name])
        if file.missing > 0:
            counts += f", {file.missing} not run"
        line = f"{path:<{self._path_width}}  {counts:<12} {file.duration_s:7.1f} s  {first_sentence(self._root / path)}"
        if self._terminal.isatty():
            line = line[: shutil.get_terminal_size().columns]
        self._terminal.write_line(line, red=bool(file.failed))
        for node_id in file.failed:
            self._terminal.write_line(f"  {node_id}", red=True)


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, without the word Claim and without its full stop."""
    try:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except (OSError, SyntaxError):
        return ""
    words = " ".join(text.split("\n\n")[0].split())
    words = re.sub(r"^Claims?: ", "", words)
    sentence = textwrap.shorten(re.split(r"\.(?:\s|$)", words, maxsplit=1)[0], SENTENCE_WIDTH_MAX, placeholder=" ...")
    return sentence[:1].upper() + sentence[1:]


def _outcome_of(report: pytest.TestReport) -> str:
    """Return the outcome that a phase of a test decides; empty for a set-up or teardown without a finding."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.when == "call" or report.skipped:
        return report.outcome
    return "error" if report.failed else ""


def _path_of(node_id: str) -> str:
    return node_id.split("::", 1)[0]
