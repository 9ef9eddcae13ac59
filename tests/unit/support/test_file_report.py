"""Claim: each test file is reported once, when the last of its tests is done, with all outcomes and what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.pytest_hooks.file_report import FileReport, first_sentence

if TYPE_CHECKING:
    from pathlib import Path

FILE = "tests/test_a.py"


class Terminal:
    """Lines instead of a terminal."""

    def __init__(self) -> None:
        self.showfspath = True
        self.lines: list[str] = []

    def isatty(self) -> bool:
        return False

    def write_line(self, line: str, **_: bool) -> None:
        self.lines.append(" ".join(line.split()))


def phase(test: str, when: str = "call", outcome: str = "passed", duration_s: float = 0.5) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=f"{FILE}::{test}",
        location=(FILE, 0, test),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=None,
        when=when,  # type: ignore[arg-type]
        duration=duration_s,
    )


def reported(root: Path, *phases: pytest.TestReport, tests: int = 2) -> list[str]:
    terminal = Terminal()
    report = FileReport(root, terminal)  # type: ignore[arg-type]
    report.expect(f"{FILE}::test_{number}" for number in range(tests))
    for each in phases:
        report.add(each)
    report.pytest_sessionfinish()
    return terminal.lines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / FILE).write_text('"""Claim: it works. Method: try.\n\nMore."""\n')
    return tmp_path


def test_a_file_is_one_line_after_its_last_test(root: Path) -> None:
    first = [phase("test_0", "setup"), phase("test_0"), phase("test_0", "teardown")]
    second = [phase("test_1", "setup"), phase("test_1"), phase("test_1", "teardown", duration_s=2.5)]
    assert reported(root, *first, *second) == [f"{FILE} 2 passed 5.0 s It works"]
    assert reported(root, *first, *second[:2]) == [f"{FILE} 2 passed, 1 not run 2.5 s It works"]
    assert reported(root) == []


def test_outcomes_are_counted_and_what_failed_is_named(root: Path) -> None:
    skipped = [phase("test_0", "setup", "skipped"), phase("test_0", "teardown")]
    broken = [phase("test_0", "setup", "failed"), phase("test_0", "teardown")]
    failed = [phase("test_1", "setup"), phase("test_1", outcome="failed"), phase("test_1", "teardown")]
    assert reported(root, *skipped, *failed) == [f"{FILE} 1 failed, 1 skipped 2.5 s It works", f"{FILE}::test_1"]
    assert reported(root, *broken, tests=1) == [f"{FILE} 1 error 1.0 s It works", f"{FILE}::test_0"]


def test_a_failure_that_is_expected_is_none(root: Path) -> None:
    expected = phase("test_0", outcome="skipped")
    expected.wasxfail = "a known mistake"
    assert reported(root, phase("test_0", "setup"), expected, phase("test_0", "teardown"), tests=1) == [
        f"{FILE} 1 xfailed 1.5 s It works"
    ]


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("One sentence", "One sentence"),
        ("One sentence. And more.", "One sentence"),
        ("Two lines\nof one sentence.\n\nMore.", "Two lines of one sentence"),
        ("Claims: 0.5 is a number. Method: look.", "0.5 is a number"),
        ("docs/x.md says it.", "Docs/x.md says it"),
    ],
)
def test_the_first_sentence_of_a_docstring(tmp_path: Path, docstring: str, sentence: str) -> None:
    (tmp_path / "x.py").write_text(f'"""{docstring}"""\n')
    assert first_sentence(tmp_path / "x.py") == sentence


def test_a_file_without_a_docstring_or_with_a_syntax_error_has_no_sentence(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("x = \n")
    assert [first_sentence(tmp_path / name) for name in ("none.py", "broken.py", "absent.py")] == ["", "", ""]
