"""Check the Delta tables, as they were at one version each, against the suites.

Runs beside the stream, never in it: a failure is a row, a number in the report and a red line in Data Docs. The kernel
asserts its invariants itself; the suites check that the recorded history is consistent.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import great_expectations as gx
from delta.tables import DeltaTable
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)

from connectors.delta.history_start import date_sql, first_day_of
from connectors.delta.log.table_log import require_table_log
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, table_path
from expectations.commit_positions_suite import commit_positions_suite
from expectations.consume_queue_suite import consume_queue_suite
from expectations.deliveries_suite import deliveries_suite
from expectations.lease_steps_view import registered_lease_steps
from expectations.operations_suite import operations_suite
from expectations.order_info_suite import order_info_suite
from expectations.rejected_suite import rejected_suite
from expectations.report import ExpectationResult, QualityReport
from expectations.results import write_results
from expectations.row_totals_view import register_unequal_row_totals
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from great_expectations.data_context.data_context.ephemeral_data_context import EphemeralDataContext
    from pyspark.sql import SparkSession

__all__ = ["suites", "validate"]

_SITE: Final = "popstream"
_CONF: Final = {
    # Spark estimates by compressed files, a hundredth of the size in memory: broadcast only tiny tables.
    "spark.sql.autoBroadcastJoinThreshold": "65536",
    "spark.sql.shuffle.partitions": "8",
}


def suites() -> list[gx.ExpectationSuite]:
    """Return all suites; each is named like its table."""
    return [
        operations_suite(),
        deliveries_suite(),
        commit_positions_suite(),
        rejected_suite(),
        order_info_suite(),
        consume_queue_suite(),
    ]


def validate(
    spark: SparkSession,
    delta_root: Path,
    *,
    versions: Mapping[str, int] | None = None,
    results: bool = True,
    data_docs: Path | None = None,
    run_at: datetime | None = None,
    on_suite: Callable[[list[ExpectationResult]], None] = lambda _: None,
) -> QualityReport:
    """Run all suites on pinned versions of the tables.

    Args:
        spark: Session with Delta. Validation uses a new session on the same Spark.
        delta_root: Folder of the tables.
        versions: Delta version by table; by default the newest.
        results: Write the outcomes to `quality_results`.
        data_docs: Folder for Data Docs. Each run replaces it; `quality_results` has the history.
        run_at: Time of the run; by default now.
        on_suite: Called with the outcomes of each suite, one for each table, as soon as it has run.

    Raises:
        Invalid: A table is missing, or lacks the version.
    """
    session = spark.newSession()
    for key, value in _CONF.items():
        session.conf.set(key, value)
    tables = [*AUDIT_TABLES]
    if DeltaTable.isDeltaTable(session, str(table_path(delta_root, CONSUME_QUEUE.name))):  # a job may build no queues
        tables.append(CONSUME_QUEUE.name)
    pinned = {table: _pin(session, delta_root, table, (versions or {}).get(table)) for table in tables}
    _register_kept_history(session, delta_root, pinned)
    _register_seen(session)
    register_unequal_row_totals(session, delta_root, pinned)
    context = _context()
    outcomes: list[ExpectationResult] = []
    with registered_lease_steps(session):
        for suite in suites():
            if suite.name in pinned:
                found = _run(context, session, suite, table_version=pinned[suite.name])
                on_suite(found)
                outcomes += found
    report = QualityReport(run_at or datetime.now(UTC), pinned, outcomes)
    if results:
        write_results(session, delta_root, report)
    if data_docs is not None:
        _build_docs(context, data_docs)
    return report


def _pin(session: SparkSession, delta_root: Path, table: str, version: int | None) -> int:
    """Register the table at one version under its name."""
    path = str(table_path(delta_root, table))
    if not DeltaTable.isDeltaTable(session, path):
        message = f"there is no Delta table at {path}: has the job run here?"
        raise Invalid(message, subject=table)
    newest = require_table_log(table_path(delta_root, table)).version
    pinned = newest if version is None else version
    if pinned > newest:
        message = f"{table} has no version {pinned} yet, only up to {newest}"
        raise Invalid(message, subject=table)
    session.read.format("delta").option("versionAsOf", pinned).load(path).createOrReplaceTempView(table)
    return pinned


def _register_kept_history(session: SparkSession, delta_root: Path, pinned: Mapping[str, int]) -> None:
    """Leave out dates before which retention has deleted rows of any audit table, and register the view `history_cut`.

    Its one row has the first date of which all audit tables have all rows, or null. Rules that need what came before
    ask it, because leases that began earlier end later.
    """
    txns = (require_table_log(table_path(delta_root, table), pinned[table]).txns for table in AUDIT_TABLES)
    first_day = max((day for day in map(first_day_of, txns) if day is not None), default=None)
    session.sql(f"SELECT {date_sql(first_day)} AS first_day").createOrReplaceTempView("history_cut")
    if first_day is not None:
        for table in AUDIT_TABLES:
            kept = session.table(table).where(f"op_date >= {date_sql(first_day)}")
            kept.createOrReplaceTempView(table)


def _register_seen(session: SparkSession) -> None:
    """Register up to which apply_seq each table has its rows, because tables are flushed one after the other.

    A flush commits all rows up to its last apply_seq, so a table with a row of apply_seq n has all earlier rows. A rule
    on several tables checks only rows up to the smallest of these; the next run checks the rest.
    """
    for table in ("operations", "deliveries"):
        query = f"SELECT state_epoch, max(apply_seq) AS apply_seq FROM {table} GROUP BY state_epoch"  # noqa: S608
        session.createDataFrame(session.sql(query).toArrow()).createOrReplaceTempView(f"{table}_reached")
    session.sql("SELECT * FROM operations_reached").createOrReplaceTempView("operations_seen")
    session.sql(
        "SELECT state_epoch, least(o.apply_seq, d.apply_seq) AS apply_seq"
        " FROM operations_reached AS o JOIN deliveries_reached AS d USING (state_epoch)"
    ).createOrReplaceTempView("deliveries_seen")


def _context() -> EphemeralDataContext:
    # The default creates a folder for Data Docs below /tmp in each run, and leaves it there.
    stores = InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
    config = DataContextConfig(store_backend_defaults=stores, progress_bars=ProgressBarsConfig(globally=False))
    return gx.get_context(mode="ephemeral", project_config=config)


def _run(
    context: EphemeralDataContext, session: SparkSession, suite: gx.ExpectationSuite, *, table_version: int
) -> list[ExpectationResult]:
    # By default each validation leaves a cached copy of the table behind (measured, 12 of 12).
    source = context.data_sources.add_spark(name=suite.name, persist=False)
    batch = source.add_dataframe_asset(name=suite.name).add_batch_definition_whole_dataframe(f"version {table_version}")
    definition = gx.ValidationDefinition(name=suite.name, data=batch, suite=context.suites.add(suite))
    context.validation_definitions.add(definition)
    validation = definition.run(
        batch_parameters={"dataframe": session.table(suite.name)}, result_format={"result_format": "COMPLETE"}
    )
    descriptions = {expectation.expectation_type: expectation.description or "" for expectation in suite.expectations}
    return [_outcome(suite.name, table_version, result, descriptions) for result in validation.results]


def _outcome(suite: str, table_version: int, result: Any, descriptions: Mapping[str, str]) -> ExpectationResult:  # noqa: ANN401 - untyped library
    found = result.result
    name = result.expectation_config.type
    error = "" if "observed_value" in found else _error(result.exception_info)
    return ExpectationResult(
        suite=suite,
        expectation=name,
        description=descriptions[name],
        table_version=table_version,
        success=bool(result.success),
        unexpected_count=found.get("observed_value", -1),
        sample=found.get("details", {}).get("unexpected_rows", []),
        error=error,
    )


def _error(exception_info: Mapping[str, Any]) -> str:
    """Return the message, from either of the two formats of Great Expectations."""
    entries = [exception_info, *(value for value in exception_info.values() if isinstance(value, dict))]
    return next((str(entry["exception_message"]) for entry in entries if entry.get("exception_message")), "no result")


def _build_docs(context: EphemeralDataContext, folder: Path) -> None:
    """Write Data Docs beside the old ones, then replace those."""
    fresh, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    site: Any = {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(fresh.absolute())},
    }
    context.add_data_docs_site(site_name=_SITE, site_config=site)
    context.build_data_docs(site_names=[_SITE])
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
