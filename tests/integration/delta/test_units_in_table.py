"""Claim: the table says where the messages of a queue are counted on. Method: units by hand in a Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connectors.delta.restore_queries import message_base_in_units, unit_ends
from connectors.delta.store import ensure_table
from connectors.delta.tables import CONSUME_QUEUE
from tests.support.unit_rows import append_units, batch_row

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_the_base_is_that_of_the_next_unit_or_the_end_of_the_last(spark: SparkSession, tmp_path: Path) -> None:
    assert message_base_in_units(spark, tmp_path, "orders", 0, "id", 0) is None
    ensure_table(spark, tmp_path, CONSUME_QUEUE)
    units = [batch_row("orders", at, base, 10) for at, base in ((3, 0), (4, 10), (7, 20))]
    units += [batch_row("orders", 2, 900, 5, queue_id=1), batch_row("orders", 9, 700, 5, topic_id="deleted")]
    append_units(spark, tmp_path, units)
    found = [message_base_in_units(spark, tmp_path, "orders", 0, "id", at) for at in (0, 3, 4, 5, 7, 8, 99)]
    assert found == [0, 0, 10, 20, 20, 30, 30]
    assert message_base_in_units(spark, tmp_path, "orders", 0, "recreated", 0) is None
    assert unit_ends(spark, tmp_path)["orders", 0, "id"] == 8
