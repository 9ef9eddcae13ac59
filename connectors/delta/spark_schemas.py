"""The Spark schemas of the Delta tables, with the comments of the columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import types

from connectors.delta.tables import Kind

if TYPE_CHECKING:
    from connectors.delta.tables import Table

__all__ = ["spark_schema"]

_SPARK_TYPES: Final = {
    Kind.BIGINT: types.LongType(),
    Kind.BINARY: types.BinaryType(),
    Kind.BOOLEAN: types.BooleanType(),
    Kind.DATE: types.DateType(),
    Kind.INT: types.IntegerType(),
    Kind.STRING: types.StringType(),
    Kind.TIMESTAMP: types.TimestampType(),
}


def spark_schema(table: Table) -> types.StructType:
    """Return the Spark schema of the whole table, with the comments."""
    return types.StructType(
        [
            types.StructField(
                column.name, _SPARK_TYPES[column.kind], nullable=True, metadata={"comment": column.comment}
            )
            for column in table.columns
        ]
    )
