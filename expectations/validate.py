"""Check the Delta tables, as they were at one version each, against the suites.

Runs beside the stream, never in it: a failure is a row, a number in the report and a red line in Data Docs. The kernel
asserts its invariants itself; the suites check that the recorded history is consistent.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError
from great_expectations.core.run_identifier import RunIdentifier

from expectations.context import CHECKPOINT, open_context
from expectations.data_docs import build_data_docs
from expectations.report import ExpectationResult, QualityReport
from expectations.results import write_results
from expectations.tables_source import SOURCE, TablesDatasource
from popstream.wire.base_errors import PopstreamError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from expectations.opened_tables import OpenedTables

__all__ = ["validate"]


def validate(
    opened: OpenedTables,
    *,
    tables: Collection[str] | None = None,
    context: Path | None = None,
    results: bool = True,
    data_docs: Path | None = None,
    run_at: datetime | None = None,
) -> QualityReport:
    """Run the checkpoint on the opened tables.

    Args:
        opened: The tables.
        tables: Run only the suites of these; by default of all that there are.
        context: Folder with a file context of Great Expectations to use instead of ours. Nothing is written there.
        results: Write the outcomes to `quality_results`.
        data_docs: Folder for Data Docs. Each run replaces it; `quality_results` has the history.
        run_at: Time of the run; by default now.

    Raises:
        Invalid: The context cannot be used.
    """
    began = run_at or datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="popstream-") as work:
        used = open_context(Path(work, "gx"), context)
        source = used.data_sources.get(SOURCE)
        assert isinstance(source, TablesDatasource)
        source.use(opened)
        checkpoint = used.checkpoints.get(CHECKPOINT)
        checkpoint.validation_definitions = [
            definition
            for definition in checkpoint.validation_definitions
            if definition.asset.name in opened.versions and (tables is None or definition.asset.name in tables)
        ]
        checkpoint.save()
        ran = checkpoint.run(run_id=RunIdentifier(run_name=f"{began:%Y%m%dT%H%M%S}Z", run_time=began))
        outcomes = [
            outcome
            for definition, result in zip(checkpoint.validation_definitions, ran.run_results.values(), strict=True)
            for outcome in _outcomes(definition, opened, result)
        ]
        report = QualityReport(began, opened.versions, outcomes, opened.scope, opened.judged)
        not_written: list[str] = []
        if results:
            with _noted(not_written, "quality_results has no row of this check"):
                write_results(opened.delta_root, report)
        if data_docs is not None:
            with _noted(not_written, f"there are no new Data Docs in {data_docs}"):
                build_data_docs(used, data_docs)
    return replace(report, not_written=not_written)


@contextlib.contextmanager
def _noted(not_written: list[str], what: str) -> Iterator[None]:
    """Note what cannot be written in the block: the outcomes, which took minutes, must not be lost for it."""
    try:
        yield
    except (DeltaError, PopstreamError, OSError) as error:
        not_written.append(f"{what}: {error}")


def _outcomes(definition: Any, opened: OpenedTables, validation: Any) -> list[ExpectationResult]:  # noqa: ANN401 - untyped library
    table = definition.asset.name
    descriptions = {
        expectation.expectation_type: expectation.description for expectation in definition.suite.expectations
    }
    return [
        _outcome(table, opened.versions[table], result, descriptions.get(result.expectation_config.type))
        for result in validation.results
    ]


def _outcome(table: str, version: int, result: Any, description: str | None) -> ExpectationResult:  # noqa: ANN401
    found = result.result
    name = result.expectation_config.type
    return ExpectationResult(
        suite=table,
        expectation=name,
        description=description or name,
        table_version=version,
        success=bool(result.success),
        unexpected_count=found.get("observed_value", -1),
        sample=found.get("details", {}).get("unexpected_rows", []),
        error="" if "observed_value" in found else _error(result.exception_info),
    )


def _error(exception_info: Mapping[str, Any]) -> str:
    """Return the message, from either of the two formats of Great Expectations."""
    entries = [exception_info, *(value for value in exception_info.values() if isinstance(value, dict))]
    return next((str(entry["exception_message"]) for entry in entries if entry.get("exception_message")), "no result")
