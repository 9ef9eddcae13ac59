"""SQL on Delta tables by DuckDB: no JVM, the first row within a moment, and nothing is written.

```
log ── deltalake ──> Snapshot: columns, files ── views ──> DuckDB, shut in: these files, this memory, this much disk
```
"""

from __future__ import annotations

import re
import tempfile
from typing import TYPE_CHECKING, Any, Final, Self

import duckdb

from connectors.delta.history_start import HISTORY_BEGINS, history_begins
from connectors.delta.views import VIEWS, views_on
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from connectors.delta.snapshot import FileBounds, Snapshot

__all__ = ["MEMORY", "SPILLED_MAX", "DuckDbTables", "described_error", "require_reading", "tables_in"]

MEMORY: Final = "1GiB"
SPILLED_MAX: Final = "4GiB"
"""What a query may write to temporary files: beyond it, it fails, and the disk stays usable."""

_TYPES: Final = {
    "binary": "BLOB",
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "date": "DATE",
    "double": "DOUBLE",
    "float": "FLOAT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "short": "SMALLINT",
    "string": "VARCHAR",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}
"""DuckDB's types by Delta's; `decimal(p,s)` has one name in both."""

_SPARK_FUNCTIONS: Final = (
    "CREATE MACRO explode(items) AS unnest(items)",
    "CREATE MACRO sequence(first, last, step := 1) AS generate_series(first, last, step)",
)
"""What `connectors.delta.views` takes from Spark's SQL."""

_ROWS_AT_ONCE: Final = 1_000
_GIVEN: Final = "rows_given"
_TIME_TRAVEL: Final = re.compile(r"\b(VERSION|TIMESTAMP)\s+AS\s+OF\b", re.IGNORECASE)
_COMMENTS: Final = re.compile(r"^(\s|\(|--[^\n]*(\n|$)|/\*.*?\*/)*", re.DOTALL)
_EXPLAIN: Final = re.compile(r"EXPLAIN(\s+ANALYZE\b)?(\s*\([^()]*\))?", re.IGNORECASE)


class DuckDbTables:
    """A connection that can read some tables, and nothing else.

    Args:
        snapshots: The tables; each gets a view of its name, and `<table>_by_message` where its rows are about ranges.
        memory: What a query may take.

    Attributes:
        snapshots: The tables by name.
    """

    def __init__(self, snapshots: Iterable[Snapshot], *, memory: str = MEMORY) -> None:
        self._spill = tempfile.TemporaryDirectory(prefix="popstream-")
        self._connection = duckdb.connect(
            config={
                "memory_limit": memory,
                "temp_directory": self._spill.name,
                "max_temp_directory_size": SPILLED_MAX,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                "allow_persistent_secrets": False,
                "python_enable_replacements": False,
            }
        )
        self._connection.execute("SET TimeZone = 'UTC'")
        # DuckDB would compare every row with every row if it expects few on the left side, and it often does after
        # several conditions: 28 s for 8,000 leases in 400,000 units, instead of 0.1 s.
        self._connection.execute("SET asof_loop_join_threshold = 0")
        opened = list(snapshots)
        self.snapshots = {snapshot.path.name: snapshot for snapshot in opened}
        for statement in _SPARK_FUNCTIONS:
            self._connection.execute(statement)
        for snapshot in opened:
            self._connection.execute(
                f"CREATE VIEW {quoted_name(snapshot.path.name)} AS {rows_of(snapshot, snapshot.files)}"
            )
        for name, query in views_on({name: each.columns for name, each in self.snapshots.items()}).items():
            self._connection.execute(f"CREATE VIEW {quoted_name(name)} AS {query}")
        first_days = {name: snapshot.first_day for name, snapshot in self.snapshots.items()}
        self._connection.execute(f"CREATE VIEW {HISTORY_BEGINS} AS {history_begins(first_days)}")
        # From here on a statement reaches the files of the tables alone, and cannot undo that.
        files = ", ".join(quoted_text(str(file.path)) for snapshot in opened for file in snapshot.files)
        self._connection.execute(f"SET allowed_paths = [{files}]")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._spill.cleanup()

    def define(self, name: str, query: str) -> None:
        """Give a query a name that other queries can use; it runs each time anew. Raises duckdb.Error."""
        self._connection.execute(f"CREATE VIEW {quoted_name(name)} AS {query}")

    def add(self, name: str, rows: pa.Table, *, replace: bool = False) -> None:
        """Keep rows of somebody else under a name that queries can use; `replace`: instead of others of that name."""
        self._connection.register(_GIVEN, rows)
        if replace:
            self._connection.execute(f"DROP TABLE IF EXISTS {quoted_name(name)}")
        self.keep(name, f"FROM {_GIVEN}")
        self._connection.unregister(_GIVEN)

    def interrupt(self) -> None:
        """End the query that another thread runs, if there is one: it raises duckdb.InterruptException."""
        self._connection.interrupt()

    def columns(self, sql: str) -> list[str]:
        """Return the names of a query's columns. Raises duckdb.Error, as all methods that take a query."""
        return self._connection.sql(sql).columns

    def rows(self, sql: str, parameters: Mapping[str, object] | None = None) -> Iterator[tuple[Any, ...]]:
        """Run a query, and yield its rows as they come. `parameters`: values of `$name` in it."""
        cursor = self._connection.execute(sql, parameters or {})
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            yield from rows

    def keep(self, name: str, sql: str, parameters: Mapping[str, object] | None = None) -> None:
        """Run a query, and keep its rows as a table of this connection, within its limits of memory and disk."""
        self._connection.execute(f"CREATE TEMP TABLE {quoted_name(name)} AS {sql}", parameters or {})

    def arrow_reader(self, sql: str) -> pa.RecordBatchReader:
        """Run a query, and return its rows in batches as they come."""
        return self._connection.sql(sql).to_arrow_reader()  # of `execute` it would hold all rows at once


def require_reading(sql: str) -> None:
    r"""Refuse anything but one query.

    >>> require_reading("-- how many?\nFROM operations")
    >>> require_reading("EXPLAIN ANALYZE COPY operations TO 'a'")
    Traceback (most recent call last):
    ...
    popstream.wire.base_errors.Invalid: only queries can be run here, not COPY

    Raises:
        Invalid: It is not SQL, more than one statement, or a statement that is not a query.
        UnicodeEncodeError: It has half characters, of bytes that are not UTF-8.
    """
    sql.encode()
    try:
        statements = duckdb.extract_statements(sql)
        if len(statements) == 1 and statements[0].type == duckdb.StatementType.EXPLAIN:
            explained = _EXPLAIN.sub("", _COMMENTS.sub("", statements[0].query), count=1)
            statements = duckdb.extract_statements(explained)
    except duckdb.Error as error:
        is_of_spark = _TIME_TRAVEL.search(sql) is not None
        hint = "; for earlier versions there are --version and --at, and --engine spark for this SQL"
        raise Invalid(described_error(error) + (hint if is_of_spark else "")) from error
    if len(statements) != 1:
        message = f"only one query can be run here, not {len(statements)} statements"
        raise Invalid(message)
    if (kind := statements[0].type) != duckdb.StatementType.SELECT:
        message = f"only queries can be run here, not {kind.name}"
        raise Invalid(message)


def tables_in(sql: str, tables: Sequence[str]) -> list[str]:
    """Return those of the tables that a query may read.

    >>> tables_in("SELECT 1 FROM deliveries_by_message JOIN rejected ON true", ["deliveries", "rejected", "operations"])
    ['deliveries', 'rejected']
    >>> tables_in("FROM lease_ends", ["deliveries", "rejected", "operations"])
    ['deliveries', 'operations']
    >>> tables_in("SHOW TABLES", ["deliveries", "rejected"])
    ['deliveries', 'rejected']
    """
    with duckdb.connect() as connection:
        try:
            named = connection.get_table_names(sql)
        except duckdb.Error:  # it needs the tables to say
            named = set()
    read = named.union(*(VIEWS[name].tables for name in named if name in VIEWS))
    found = [name for name in tables if name in read]
    return found or list(tables)


def described_error(error: duckdb.Error) -> str:
    r"""Return the message of an error in one line, without the piece of the statement that DuckDB repeats below it.

    >>> described_error(duckdb.ParserException("Parser Error: syntax error\n\nLINE 1: selec\n        ^"))
    'Parser Error: syntax error'
    """
    return " ".join(str(error).partition("\nLINE ")[0].split()) or type(error).__name__


def rows_of(snapshot: Snapshot, files: Sequence[FileBounds]) -> str:
    """Return a query for the rows in some files of a table, with the columns of the table."""
    columns = {name: _TYPES.get(kind, kind) for name, kind in snapshot.columns.items()}
    if not files:
        empty = ", ".join(f"CAST(NULL AS {kind}) AS {quoted_name(name)}" for name, kind in columns.items())
        return f"SELECT {empty} WHERE false"
    paths = ", ".join(quoted_text(str(file.path)) for file in files)
    # By name, and null where a file that an older version wrote lacks a column. Nothing is read to find that out.
    schema = ", ".join(
        f"{quoted_text(name)}: {{name: {quoted_text(name)}, type: {quoted_text(kind)}, default_value: NULL}}"
        for name, kind in columns.items()
        if name not in snapshot.partitioned_by
    )
    options = f"schema = MAP {{{schema}}}"
    if snapshot.partitioned_by:
        kinds = ", ".join(f"{quoted_text(name)}: {columns[name]}" for name in snapshot.partitioned_by)
        options += f", hive_partitioning = true, hive_types = {{{kinds}}}"
    names = ", ".join(map(quoted_name, columns))
    return f"SELECT {names} FROM read_parquet([{paths}], {options})"  # noqa: S608 - quoted


def quoted_name(name: str) -> str:
    """Return the name of a column or table as SQL.

    >>> quoted_name("group")
    '"group"'
    """
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def quoted_text(text: str) -> str:
    """Return a text as SQL.

    >>> quoted_text("it's")
    "'it''s'"
    """
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
