"""`popstream check`: validate the tables against the expectations."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from checkpoints.layout import JobFolder
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE
from pipelines.cli.exits import Exit, say
from pipelines.cli.printing import counted, standard_output
from pipelines.cli.spark_tools import working
from pipelines.cli.tables.check_evidence import before_opening, figures_between, log_to_compare
from pipelines.cli.time_options import since_day
from pipelines.job_settings import JobSettings
from pipelines.process.signals import interrupted_by_signals
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from expectations.evidence import Evidence
    from expectations.opened_tables import OpenedTables
    from expectations.report import QualityReport
    from expectations.scope import Scope

__all__ = ["CheckOptions", "run_check"]

LAST = "last"


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What is checked, and who hears of it.

    Args:
        tables: Only the suites of these tables; empty: all.
        since: What is judged: `last`, or a time as options take it; None: all rows.
        context: Folder with a file context of Great Expectations; None: ours.
        data_docs: Folder for Data Docs.
        late_after_ms: Records of the ops topic older than this must have their rows.
        on_failure: Command that is run when an expectation does not hold.
        webhook: URL that is called then.
    """

    tables: tuple[str, ...] = ()
    since: str | None = None
    context: Path | None = None
    data_docs: Path
    late_after_ms: int
    on_failure: str | None = None
    webhook: str | None = None


def run_check(
    settings: JobSettings, delta_root: Path, options: CheckOptions, *, as_json: bool, is_copy: bool = False
) -> None:
    """Validate the tables, print the report, and write Data Docs; to `quality_results` only where that is allowed.

    Raises:
        Invalid: There are no tables, or the options name what there is not.
        Corrupt: A file of a table is damaged or missing.
        Unavailable: Kafka, or the running job, does not answer.
        typer.Exit: An expectation does not hold, or the results could not be written.
    """
    _require_tables(options.tables)
    with working("checking"):
        # Great Expectations takes seconds to import: the spinner runs already.
        from expectations.actions import call_webhook, described_failures, require_webhook, run_command  # noqa: PLC0415
        from expectations.data_docs import require_replaceable  # noqa: PLC0415

        require_replaceable(options.data_docs.absolute())
        if options.webhook is not None:
            require_webhook(options.webhook)
        can_write = not is_copy and os.access(delta_root, os.W_OK)
        report, not_compared = _validated(settings, delta_root.absolute(), options, results=can_write)
    data_docs = options.data_docs.absolute()
    if as_json:
        document = {
            "run_at": report.run_at,
            "scope": report.scope.name,
            "versions": report.versions,
            "judged": report.judged,
            "expectations_failed": report.expectations_failed,
            "data_docs": str(data_docs),
            "not_compared_with": not_compared,
            "not_written": list(report.not_written),
            "outcomes": [dataclasses.asdict(outcome) for outcome in report.outcomes],
        }
        print(msgspec.json.encode(document, enc_hook=str).decode())
    else:
        _print(standard_output(), report)
        if not can_write:
            say("quality_results has no row of this check: this command can only read the tables here")
        for what in not_compared:
            say(f"not compared with {what}")
        say(f"Data Docs: {data_docs / 'index.html'}")
    for problem in report.not_written:
        say(problem)
    if not report.expectations_failed:
        if report.not_written:
            raise typer.Exit(Exit.NOT_AS_ASKED)
        return
    failures = {**described_failures(report), "data_docs": str(data_docs)}
    problems = [
        None if options.on_failure is None else run_command(options.on_failure, failures),
        None if options.webhook is None else call_webhook(options.webhook, failures),
    ]
    for problem in filter(None, problems):
        say(problem)
    raise typer.Exit(Exit.NOT_AS_ASKED)


def _validated(
    settings: JobSettings, delta_root: Path, options: CheckOptions, *, results: bool
) -> tuple["QualityReport", list[str]]:
    """Return the report, and with what the tables could not be compared."""
    from expectations.evidence import Evidence  # noqa: PLC0415 - as above
    from expectations.opened_tables import OpenedTables, pinned_versions  # noqa: PLC0415
    from expectations.validate import validate  # noqa: PLC0415

    folder = JobFolder(settings.folder.absolute())
    options.data_docs.parent.mkdir(parents=True, exist_ok=True)
    pinned_versions(delta_root, {})  # before anybody is waited for
    with contextlib.ExitStack() as stack:
        before = before_opening(folder)
        versions = pinned_versions(delta_root, {})
        log = stack.enter_context(log_to_compare(folder, settings))
        evidence = Evidence(
            log=log,
            job=figures_between(folder, before),
            now_ms=int(time.time() * 1000),
            late_after_ms=options.late_after_ms,
        )
        scope = _scope(delta_root, versions, options.since)
        opened = stack.enter_context(OpenedTables(delta_root, versions=versions, scope=scope, evidence=evidence))
        stack.enter_context(interrupted_by_signals(opened.interrupt))
        try:
            report = validate(
                opened,
                tables=options.tables or None,
                context=options.context,
                results=results,
                data_docs=options.data_docs.absolute(),
            )
        except KeyboardInterrupt as interrupted:
            interrupted.add_note(progress(opened))
            raise
    return report, list(_not_compared(evidence))


def _not_compared(evidence: "Evidence") -> Iterator[str]:
    if evidence.log is None:
        yield "Kafka's log: no job runs, and no --bootstrap-servers name its Kafka"
    if evidence.job is None:
        yield "what the job counts: none runs, or it has not written its rows yet"


def _scope(delta_root: Path, versions: dict[str, int], since: str | None) -> "Scope":
    from expectations.scope import ALL_ROWS, changed_rows, rows_since  # noqa: PLC0415 - as above

    if since is None:
        return ALL_ROWS
    return changed_rows(delta_root, versions) if since == LAST else rows_since(since_day(since))


def _require_tables(names: tuple[str, ...]) -> None:
    known = (*AUDIT_TABLES, CONSUME_QUEUE.name)
    if unknown := [name for name in names if name not in known]:
        message = f"no expectations for a table {unknown[0]}: use one of {', '.join(known)}"
        raise Invalid(message, subject=unknown[0])


def progress(opened: "OpenedTables") -> str:
    """Return what was checked before the command was stopped."""
    if not opened.evaluated:
        return "no expectation was checked yet"
    held = sum(unexpected == 0 for _, unexpected in opened.evaluated)
    return f"{len(opened.evaluated)} expectations were checked, {held} of them hold; no report was printed"


def _print(console: Console, report: "QualityReport") -> None:
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
    console.print(f"{held} of {len(report.outcomes)} expectations hold, for {_judged(report)}")


def _judged(report: "QualityReport") -> str:
    """Return what was judged, for people."""
    checked = {outcome.suite for outcome in report.outcomes}
    rows = counted(sum(count for table, count in report.judged.items() if table in checked), "row")
    of_scope = {"all": "", "changed": " of dates that have changed since the last check that passed"}
    return rows + of_scope.get(report.scope.name, f" {report.scope.name}")
