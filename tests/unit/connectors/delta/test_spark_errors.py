"""Claim: an error of Spark is explained by the damaged file that is behind it, and keeps its text without the JVM."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import json
from pyspark.errors import AnalysisException, PySparkException

from connectors.delta.data_files import data_schema
from connectors.delta.spark_errors import SparkError, require_undamaged, spark_errors_kept, spark_text
from connectors.delta.table_damage import damage_in
from connectors.delta.tables import TABLES
from pipelines.cli.exits import error_text, exit_code
from popstream.wire.base_errors import Corrupt
from tests.support.java_error import ended_java_error, java_error
from tests.support.left_behind import damage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ADVICE = "bring it back from a copy, or run `popstream restore --rebuild operations`"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of three files, written by hand."""
    table = tmp_path / "operations"
    (table / "_delta_log").mkdir(parents=True)
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {"schemaString": "{}", "configuration": {}}},
    ]
    for number in range(3):
        file = table / f"part {number}.parquet"
        columns = {field.name: pa.nulls(1000, field.type) for field in data_schema(TABLES["operations"])}
        columns["kafka_offset"] = pa.array(range(1000), pa.int64())
        pq.write_table(pa.table(columns), file, compression="none", use_dictionary=False, write_page_checksum=True)
        add = {"path": f"part%20{number}.parquet", "size": file.stat().st_size, "partitionValues": {}}
        actions.append({"add": {**add, "modificationTime": 1}})
    (table / "_delta_log" / f"{0:020d}.json").write_bytes(b"\n".join(json.encode(action) for action in actions))
    return table


def remove(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def flip_in_a_page(file: Path) -> None:
    damage(file, file.read_bytes().index((500).to_bytes(8, "little")))


def flip_in_the_footer(file: Path) -> None:
    damage(file, file.stat().st_size - 6)


def put_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("error", [PySparkException("[FAILED_READ_FILE.NO_HINT] x"), java_error("o.a.parquet.Error")])
@pytest.mark.parametrize("harm", [remove, truncate, flip_in_a_page, flip_in_the_footer, put_folder])
def test_a_damaged_data_file_is_named(table: Path, harm: Callable[[Path], None], error: Exception) -> None:
    victim = table / "part 1.parquet"
    harm(victim)
    with pytest.raises(Corrupt) as raised, require_undamaged(table):
        raise error
    message = raised.value.message
    assert message.startswith(f"a data file of operations is damaged: {victim} ")
    assert message.endswith(ADVICE)
    assert "\n" not in message
    assert exit_code(raised.value) == 4


def test_a_damaged_log_is_named(table: Path) -> None:
    log = table / "_delta_log" / f"{0:020d}.json"
    log.write_text("{")
    with pytest.raises(Corrupt, match=rf"^the log of operations is damaged: {re.escape(str(log))} .*{ADVICE}$"):
        raise_in(table, AnalysisException("x"))


def raise_in(table: Path, error: Exception) -> None:
    with require_undamaged(table):
        raise error


@pytest.mark.parametrize("kind", [AnalysisException, ValueError, Corrupt])
def test_other_errors_stay_as_they_are(table: Path, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="divided by zero"):
        raise_in(table, kind("divided by zero"))


def test_an_error_of_a_query_does_not_read_whole_tables(table: Path) -> None:
    flip_in_a_page(table / "part 1.parquet")
    assert damage_in(table) is not None
    with pytest.raises(AnalysisException):
        raise_in(table, AnalysisException("divided by zero"))


def test_the_text_of_an_error_outlives_the_jvm() -> None:
    with pytest.raises(SparkError) as raised, spark_errors_kept():
        raise java_error("java.lang.IllegalStateException: no\n\tat x")
    assert error_text(raised.value) == "Spark failed (Py4JJavaError): java.lang.IllegalStateException: no"
    assert exit_code(raised.value) == 1
    assert spark_text(ended_java_error()) == "Spark failed (Py4JJavaError): it gave no reason"


STREAM_FAILED = (
    "[STREAM_FAILED] Query [id = 4d64, runId = 5649] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An"
    " error occurred in the user provided function in foreach batch sink. Reason: An exception was raised by the Python"
    " Proxy. Return Message: Traceback (most recent call last):\n"
)
IN_SPARK = 'Traceback (most recent call last):\n  File "clientserver.py", line 644, in _call_proxy\n    f()\n    ^^^\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            STREAM_FAILED
            + '  File "flush.py", line 6, in write\n    open()\nFileNotFoundError: gone\n\nThe above exception was the'
            " direct cause of the following exception:\n\n"
            + IN_SPARK
            + "popstream.wire.base_errors.Unavailable: the tables are away\nsince noon\n SQLSTATE: 39000\n=== Query\n",
            "popstream.wire.base_errors.Unavailable: the tables are away",
        ),
        (
            "Job aborted: Lost task 0.3 (executor 1): org.apache.spark.api.python.PythonException: "
            + IN_SPARK
            + "MemoryError\n\n\tat org.apache.spark.api.python.BasePythonRunner\n",
            "MemoryError",
        ),
        (STREAM_FAILED + "  File", STREAM_FAILED.rstrip()),
        ("[STREAM_FAILED] no space left\n\tat java.io", "[STREAM_FAILED] no space left"),
    ],
    ids=["driver", "task", "cut off", "no python"],
)
def test_an_error_in_code_that_spark_calls_is_told_by_what_python_raised(text: str, told: str) -> None:
    assert spark_text(java_error(text)) == f"Spark failed (Py4JJavaError): {told}"
