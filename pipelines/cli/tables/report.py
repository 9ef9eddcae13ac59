"""`popstream report`: what happened in a period, as one HTML file. Works while the job is running."""

import os
from pathlib import Path
from time import time

from checkpoints.layout import JobFolder
from connectors.delta.duckdb_errors import query_errors
from connectors.delta.tables import TABLES, table_path
from pipelines.cli.exits import say
from pipelines.cli.tables.why import local_zone
from pipelines.process.signals import interrupted_by_signals
from pipelines.report.page import report_page
from pipelines.report.read_report import read_report
from pipelines.report.report_data import Report, Scope
from pipelines.report.report_tables import open_tables
from popstream.wire.base_errors import Invalid

__all__ = ["run_report"]


def run_report(folder: JobFolder, scope: Scope, out: Path) -> None:
    """Write the report of a job. A file of this name is replaced when the report is whole.

    Raises:
        Invalid: There are no tables or rows, they know nothing of what was asked for, or the file cannot be written.
        Corrupt: A file of a table is damaged or missing.
        Unavailable: A file of a table cannot be read for another reason.
    """
    _require_writable(out)
    zone = local_zone()
    report = _read(folder, scope)
    made = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        made.write_text(report_page(report, zone), encoding="utf-8")
        made.replace(out)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise _unwritable(out, error.strerror or str(error)) from error
    say(f"the report is in {out}")


def _read(folder: JobFolder, scope: Scope) -> Report:
    paths = [table_path(folder.delta, name) for name in TABLES]
    with open_tables(folder.delta, scope) as tables, interrupted_by_signals(tables.interrupt), query_errors(paths):
        return read_report(tables, str(folder.root.absolute()), round(time() * 1000), local_zone())


def _require_writable(out: Path) -> None:
    """Refuse a file that cannot be written before the tables are read, which may take a minute."""
    if out.is_dir():
        raise _unwritable(out, "it is a folder")
    if not out.parent.is_dir():
        raise _unwritable(out, f"there is no folder {out.parent}")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise _unwritable(out, f"the folder {out.parent} cannot be written to")


def _unwritable(out: Path, why: str) -> Invalid:
    message = f"the report cannot be written to {out}: {why}"
    return Invalid(message, subject=str(out))
