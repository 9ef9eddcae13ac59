"""The kind of expectation used here: an SQL query that returns no rows.

Great Expectations runs the query of an `UnexpectedRowsExpectation` twice, for the count and for the rows. This class
runs it once, and by DuckDB on the opened tables (expectations/opened_tables.py): a batch only names its table.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.query_metric_provider import QueryMetricProvider

from expectations.opened_tables import SAMPLE_ROWS_MAX

if TYPE_CHECKING:
    from great_expectations.execution_engine.execution_engine import ExecutionEngine

    from expectations.opened_tables import OpenedTables

__all__ = ["SAMPLE_ROWS_MAX", "TABLE_COLUMN", "ExpectNoRows"]

TABLE_COLUMN: Final = "table"
"""The only column of a batch: the name of the table that it stands for."""

_METRIC: Final = "popstream.unexpected_rows"


class UnexpectedRows(QueryMetricProvider):
    """Counts the rows of a query and returns the first of them."""

    metric_name = _METRIC
    value_keys = ("unexpected_rows_query",)

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(
        cls,  # noqa: N805 - the decorator makes it a class method
        execution_engine: PandasExecutionEngine,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],  # noqa: ARG002
        runtime_configuration: dict[str, Any],  # noqa: ARG002
    ) -> tuple[int, list[dict[str, Any]]]:
        frame, _, _ = execution_engine.get_compute_domain(metric_domain_kwargs, domain_type=MetricDomainTypes.TABLE)
        (table,) = frame[TABLE_COLUMN]
        tables: OpenedTables = execution_engine.tables  # type: ignore[attr-defined] # of the batch (tables_source.py)
        count, rows = tables.unexpected_rows(table, metric_value_kwargs["unexpected_rows_query"])
        # Data Docs are JSON, which has no dates and bytes.
        return count, json.loads(json.dumps(rows, default=str))


class ExpectNoRows(UnexpectedRowsExpectation):
    """Base of all expectations: `unexpected_rows_query` returns no rows."""

    metric_dependencies: ClassVar[tuple[str, ...]] = (_METRIC,)

    @property
    def sql(self) -> str:
        """The query, with `{batch}` for the judged rows of the table."""
        assert isinstance(self.unexpected_rows_query, str)
        return self.unexpected_rows_query

    def _validate(
        self,
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any] | None = None,  # noqa: ARG002
        execution_engine: ExecutionEngine[Any] | None = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        count, rows = metrics[_METRIC]
        return {
            "success": count == 0,
            "result": {"observed_value": count, "details": {"unexpected_rows": rows}},
        }
