"""Claim: what is read of a Delta log without Spark is what Spark reads of it.

Method: tables with commits of several applications and a property, with and without checkpoints of each kind that Delta
writes; after each change Delta's own snapshot is asked for the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from connectors.delta.log.table_log import read_table_log
from popstream.wire.base_errors import Corrupt
from tests.support.audit_tables import delta_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

COMMITS = 8


def write(spark: SparkSession, path: Path, number: int, **options: str) -> None:
    frame = spark.range(2).selectExpr("id", f"{number} AS number", "struct(id, 'x' AS name) AS nested")
    writer = frame.write.format("delta").mode("append").options(**options)
    writer.option("txnAppId", f"job/{number % 3}").option("txnVersion", number).save(str(path))


def as_spark_has_it(spark: SparkSession, path: Path) -> tuple[int, Any, dict[str, str], dict[str, int]]:
    jvm: Any = spark._jvm
    log = delta_log(spark, path)
    none = jvm.scala.Option.empty()
    snapshot = log.update(False, none, none)
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    txns = as_java(snapshot.transactions())
    properties = as_java(snapshot.metadata().configuration())
    return (
        int(snapshot.version()),
        json.loads(snapshot.schema().json()),
        {str(name): str(properties[name]) for name in properties},
        {str(name): int(txns[name]) for name in txns},
    )


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    changed: list[str] = []

    def change(**values: str) -> None:
        for name, value in values.items():
            changed.append("spark.databricks.delta." + name.replace("__", "."))
            spark.conf.set(changed[-1], value)

    yield change
    for name in changed:
        spark.conf.unset(name)


@pytest.mark.parametrize(
    ("interval", "policy", "part_size"),
    [
        pytest.param("100", "classic", None, id="no checkpoint"),
        pytest.param("3", "classic", None, id="classic checkpoints"),
        pytest.param("3", "classic", "1", id="checkpoints in parts", marks=pytest.mark.long),
        pytest.param("3", "v2", None, id="checkpoints of version 2", marks=pytest.mark.long),
    ],
)
def test_as_spark_reads_it(
    spark: SparkSession, conf: Any, tmp_path: Path, interval: str, policy: str, part_size: str | None
) -> None:
    table = tmp_path / "table"
    conf(
        properties__defaults__checkpointInterval=interval,
        properties__defaults__checkpointPolicy=policy,
    )
    if part_size:
        conf(checkpoint__partSize=part_size)
    assert read_table_log(table) is None
    for number in range(COMMITS):
        write(spark, table, number)
        if number == 4:
            spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
        found = read_table_log(table)
        assert found is not None
        read = (found.version, json.loads(found.schema), found.properties, found.txns)
        assert read == as_spark_has_it(spark, table)
    names = [path.name for path in (table / "_delta_log").glob("*.checkpoint*")]
    assert bool(names) == (interval != "100")
    assert any(".0000000002." in name for name in names) == (part_size is not None)
    if names:  # one that cannot be read says nothing that its commits do not say
        newest = max(table.glob("_delta_log/*.checkpoint*"), key=lambda path: path.name)
        content = newest.read_bytes()
        newest.write_bytes(content[: len(content) // 2])
        assert read_table_log(table) == found
        newest.write_bytes(content)
    if names and policy == "classic":  # what a checkpoint has is gone after a week
        for commit in sorted((table / "_delta_log").glob("*.json"))[:4]:
            commit.unlink()
        assert read_table_log(table) == found


def test_a_log_with_a_gap_or_a_torn_commit_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    for number in range(3):
        write(spark, table, number)
    log = table / "_delta_log"
    (log / "00000000000000000002.json").write_text('{"txn":{"appId"')
    with pytest.raises(Corrupt, match=r"00000000000000000002\.json cannot be read"):
        read_table_log(table)
    (log / "00000000000000000001.json").unlink()
    with pytest.raises(Corrupt, match=r"lacks version 1, and has 2: .* run `popstream restore --rebuild table`"):
        read_table_log(table)
