"""Claim: texts of clients are printed as they are, and no terminal obeys them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from pipelines.cli.exits import say
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.tables import query_result

if TYPE_CHECKING:
    import pytest

CODE = "host:1234:5"
"""Rich has a picture for `:1234:`."""
OBEYED = "a\x1b[2Jb"
SHOWN = r"a\x1b[2Jb"


def test_no_code_becomes_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    console = standard_output()
    console.print(CODE)
    print_facts(console, {"client": CODE})
    table = Table("client")
    table.add_row(CODE)
    console.print(table)
    query_result._print_table(["client"], [[CODE]])
    assert capsys.readouterr().out.count(CODE) == 4


def test_no_control_character_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = standard_output()
    print_facts(console, {"client": OBEYED})
    table = Table("client")
    table.add_row(OBEYED)
    console.print(table)
    query_result._print_table(["client"], [[OBEYED]])
    query_result._print_vertically(["client"], [[OBEYED]])
    say(OBEYED)
    shown = capsys.readouterr()
    assert (shown.out.count(SHOWN), shown.err) == (4, f"popstream: {SHOWN}\n")
    assert "\x1b" not in shown.out


def test_styles_still_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    standard_output().print(f"[bold]{CODE}[/]")
    assert capsys.readouterr().out == f"\x1b[1m{CODE}\x1b[0m\n"
