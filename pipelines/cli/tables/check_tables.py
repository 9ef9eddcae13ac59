"""`popstream check`: validate the tables against the expectations."""

import dataclasses
import os
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from expectations.report import ExpectationResult, QualityReport
from pipelines.cli.exits import Exit, say
from pipelines.cli.printing import standard_output
from pipelines.cli.spark_tools import reading_session, working

__all__ = ["run_check"]


def run_check(delta_root: Path, *, var: Path, data_docs: Path, as_json: bool, is_copy: bool = False) -> None:
    """Validate the tables, print the report, and write Data Docs; to `quality_results` only where that is allowed.

    Raises:
        Invalid: There are no tables.
        typer.Exit: An expectation does not hold.
    """
    with reading_session(var) as spark, working("checking"):
        # Great Expectations takes seconds to import: the spinner runs already.
        from expectations.validate import validate  # noqa: PLC0415

        data_docs.parent.mkdir(parents=True, exist_ok=True)
        checked: list[list[ExpectationResult]] = []
        try:
            can_write = not is_copy and os.access(delta_root, os.W_OK)
            report = validate(
                spark,
                delta_root.absolute(),
                results=can_write,
                data_docs=data_docs.absolute(),
                on_suite=checked.append,
            )
        except KeyboardInterrupt as interrupted:
            interrupted.add_note(_progress(checked))
            raise
    if as_json:
        outcomes = [dataclasses.asdict(outcome) for outcome in report.outcomes]
        document = {
            "run_at": report.run_at,
            "versions": report.versions,
            "expectations_failed": report.expectations_failed,
            "data_docs": str(data_docs.absolute()),
            "outcomes": outcomes,
        }
        print(msgspec.json.encode(document, enc_hook=str).decode())
    else:
        _print(standard_output(), report)
        if not can_write:
            say("quality_results has no row of this check: the tables may only be read here")
        say(f"Data Docs: {data_docs.absolute() / 'index.html'}")
    if report.expectations_failed:
        raise typer.Exit(Exit.NOT_AS_ASKED)


def _progress(checked: list[list[ExpectationResult]]) -> str:
    """Return what was checked before the command was stopped."""
    if not checked:
        return "no table was checked yet"
    outcomes = [outcome for suite in checked for outcome in suite]
    held = sum(outcome.success for outcome in outcomes)
    return (
        f"{len(checked)} tables were checked, {held} of their {len(outcomes)} expectations hold; no report was printed"
    )


def _print(console: Console, report: QualityReport) -> None:
    table = Table("table", "version", "rule", "", "rows")
    for outcome in report.outcomes:
        verdict = "[green]holds[/]" if outcome.success else "[bold red]broken[/]"
        count = outcome.error or (f"{outcome.unexpected_count:,}" if outcome.unexpected_count else "")
        rule = outcome.description or outcome.expectation
        table.add_row(outcome.suite, str(outcome.table_version), escape(rule), verdict, escape(count))
    console.print(table)
    for outcome in report.failures:
        for row in outcome.sample[:3]:
            console.print(
                f"  [red]{outcome.suite}[/] {escape(outcome.expectation)}: {escape(str(row))}", soft_wrap=True
            )
    held = len(report.outcomes) - report.expectations_failed
    console.print(f"{held} of {len(report.outcomes)} expectations hold")
