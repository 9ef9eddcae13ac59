"""Claims: docs/scale.md has the table that its calibration leads to; a cluster that is too large for one driver is
divided.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.benchmarks.cluster_model import (
    EXECUTORS,
    MICRO_BATCH_S_MAX,
    Calibration,
    calibration_of,
    markdown,
    scaled,
)

DOC = Path(__file__).parents[3] / "docs" / "scale.md"
MEASURED = Calibration(executor_us=80, task_ms=1, micro_batch_ms=300, log_bytes=500, table_rows=2, table_bytes=50)


def test_the_document_has_the_table_of_its_calibration() -> None:
    text = DOC.read_text()
    (line,) = re.findall(r"^Calibration: (.*)$", text, re.MULTILINE)
    fields = dict(fact.split() for fact in line.split(", "))
    measured = msgspec.convert({name: float(value) for name, value in fields.items()}, Calibration)
    assert markdown(measured) in text


def test_queues_are_divided_among_prefixes_before_a_micro_batch_takes_too_long() -> None:
    found = [scaled(MEASURED, executors) for executors in EXECUTORS]
    assert all(each.micro_batch_s <= MICRO_BATCH_S_MAX for each in found)
    assert [each.prefixes for each in found] == sorted(each.prefixes for each in found)
    assert found[0].prefixes == 1 < found[-1].prefixes
    fewer = found[-1].prefixes - 1
    undivided = scaled(msgspec.structs.replace(MEASURED, task_ms=MEASURED.task_ms / found[-1].prefixes), EXECUTORS[-1])
    assert undivided.prefixes < fewer, "the driver's time for tasks is what divides them"


def test_a_driver_that_cannot_keep_up_with_one_executor_has_a_prefix_each() -> None:
    """Where nothing helps the model ends, and says how long a micro-batch would be."""
    found = scaled(msgspec.structs.replace(MEASURED, micro_batch_ms=5_000), 3)
    assert found.prefixes == 3
    assert found.micro_batch_s == pytest.approx(25.0)


def test_a_report_of_several_runs_is_read_by_its_medians() -> None:
    two = {
        "cpu_us_per_record": {"executor_python": [30, 29, 40], "executor_jvm": [50, 49, 60], "kafka": [9, 9, 9]},
        "driver_ms_per_task": [1, 0.9, 2],
        "micro_batch_ms": {"triggerExecution": [300, 290, 400]},
        "log_bytes_per_record": {"ops": [150, 149, 151], "results": [100, 99, 101], "audit": [250, 240, 260]},
        "table_rows_per_record": 2,
        "table_bytes_per_record": 50,
    }
    assert calibration_of({"cluster": {"single_2_executors": two}}) == MEASURED
