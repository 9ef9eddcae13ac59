"""The kind of expectation used here: a SQL query that returns no rows.

Great Expectations runs the query of an `UnexpectedRowsExpectation` twice, for the count and for the rows, with views of
the default Spark session. This class runs it once, in the session of its frame: validation has a session of its own,
whose views are the pinned tables and cannot collide with those of the streaming queries.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.query_metric_provider import QueryMetricProvider

if TYPE_CHECKING:
    from great_expectations.execution_engine.execution_engine import ExecutionEngine

__all__ = ["SAMPLE_ROWS_MAX", "ExpectNoRows"]

SAMPLE_ROWS_MAX: Final = 20

_METRIC: Final = "popstream.unexpected_rows"
_BATCH_VIEW: Final = "popstream_batch"


class UnexpectedRows(QueryMetricProvider):
    """Counts the rows of a query and returns the first of them, in one Spark job."""

    metric_name = _METRIC
    value_keys = ("unexpected_rows_query",)

    @metric_value(engine=SparkDFExecutionEngine)
    def _spark(
        cls,  # noqa: N805 - the decorator makes it a class method
        execution_engine: SparkDFExecutionEngine,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],  # noqa: ARG002
        runtime_configuration: dict[str, Any],  # noqa: ARG002
    ) -> tuple[int, list[dict[str, Any]]]:
        frame, _, _ = execution_engine.get_compute_domain(metric_domain_kwargs, domain_type=MetricDomainTypes.TABLE)
        frame.createOrReplaceTempView(_BATCH_VIEW)
        query = metric_value_kwargs["unexpected_rows_query"].format(batch=_BATCH_VIEW)
        counted = f"SELECT *, count(*) OVER () AS unexpected_count FROM ({query}) LIMIT {SAMPLE_ROWS_MAX}"  # noqa: S608 - our own
        rows = [row.asDict(recursive=True) for row in frame.sparkSession.sql(counted).collect()]
        count = rows[0]["unexpected_count"] if rows else 0
        for row in rows:
            del row["unexpected_count"]
        # Data Docs are JSON, which has no dates and bytes.
        return count, json.loads(json.dumps(rows, default=str))


class ExpectNoRows(UnexpectedRowsExpectation):
    """Base of all expectations: `unexpected_rows_query` returns no rows."""

    metric_dependencies: ClassVar[tuple[str, ...]] = (_METRIC,)

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
