"""All suites, as code: the files of the context are made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from expectations.commit_positions_suite import commit_positions_suite
from expectations.consume_queue_suite import consume_queue_suite
from expectations.deliveries_suite import deliveries_suite
from expectations.expect_no_rows import ExpectNoRows
from expectations.operations_suite import operations_suite
from expectations.order_info_suite import order_info_suite
from expectations.rejected_suite import rejected_suite

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite

__all__ = ["rules_of", "suites"]


def suites() -> list[ExpectationSuite]:
    """Return all suites; each is named like its table."""
    return [
        operations_suite(),
        deliveries_suite(),
        commit_positions_suite(),
        rejected_suite(),
        order_info_suite(),
        consume_queue_suite(),
    ]


def rules_of(suite: ExpectationSuite) -> list[ExpectNoRows]:
    """Return the expectations of a suite of ours, each of which is a query."""
    return [rule for rule in suite.expectations if isinstance(rule, ExpectNoRows)]
