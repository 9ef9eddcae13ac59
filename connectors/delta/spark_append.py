"""Appends to a table by one of Delta's own transactions, with as many transaction identifiers as it needs.

Delta's writer takes a single identifier. The table may be at any URL that Hadoop can reach.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from connectors.delta.log.actions import read_action
from connectors.delta.log.table_log import DataFile, TableLog, require_table_log
from connectors.delta.log.write_commit import add_action

__all__ = ["More", "SparkAppend"]

LastVersion = Callable[[str], int | None]
"""Returns the last `txnVersion` of a `txnAppId`; None: there is none."""

More = Callable[[LastVersion], Mapping[str, int]]
"""Returns what else a commit sets, by `txnAppId`, from what it finds."""


class SparkAppend:
    """A commit that adds rows, begun at the newest version of the table. Delta checks what others commit meanwhile.

    Args:
        spark: Session with Delta.
        location: Path or URL of the table, which exists.
        app_id: The `txnAppId` of the writer.
        version: The `txnVersion`.
        folder: The table as a folder of this machine; None: it is elsewhere. Transactions are read there from the log
            itself: Spark reads the whole table's log for them, in some jobs, after each commit.

    Attributes:
        app_id: As given.
        read_version: The version at which it was begun.
        is_done: The table has the rows, as its last `txnVersion` is not lower. Then nothing is to be committed.
        last_version: The last `txnVersion` of the writer; None: it has committed nothing.
        committed: The version that the commit has made; before it `read_version`.

    Each commit has the identifier of its writer as its `userMetadata`, too, by which it is found in the history.

    Raises:
        Corrupt: The log in the folder is damaged.
        Py4JJavaError: Each method: Spark or Delta failed; a commit also if another writer has changed the table
            meanwhile, or has committed with `app_id`.
    """

    def __init__(
        self, spark: SparkSession, location: str, *, app_id: str, version: int, folder: Path | None = None
    ) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no API for it
        self._spark = spark
        self._jvm = jvm
        self._activate()
        self._delta = jvm.org.apache.spark.sql.delta
        self._transaction = self._delta.DeltaLog.forTable(spark._jsparkSession, location).startTransaction()  # noqa: SLF001
        self.read_version: int = self._transaction.readVersion()
        self.app_id = app_id
        self._version = version
        if folder is None:
            known = self._transaction.snapshot().transactions()
            self._last: LastVersion = lambda app: int(known.apply(app)) if known.contains(app) else None
        else:
            self._last = require_table_log(folder, self.read_version).txns.get
        # What `txnVersion` does besides reading: a commit of another writer with this identifier is a conflict.
        self._transaction.readTxn().addOne(app_id)
        self.last_version = self._last(app_id)
        self.is_done = self.last_version is not None and self.last_version >= version
        self.committed = self.read_version

    @property
    def log(self) -> TableLog:
        """What the log says about the table, without transactions."""
        protocol = read_action(self._transaction.protocol().json()).protocol
        metadata = read_action(self._transaction.metadata().json()).meta_data
        assert protocol is not None
        assert metadata is not None
        return TableLog(
            version=self.read_version,
            protocol=protocol,
            schema=metadata.schema_string,
            properties=dict(metadata.configuration or {}),
            txns={},
        )

    def commit_rows(self, rows: DataFrame, more: More) -> None:
        """Commit rows with the columns of the table. Executors write the files, and Delta partitions them."""
        self._activate()
        self._commit(self._transaction.writeFiles(rows._jdf), more)  # noqa: SLF001

    def commit_files(self, files: Iterable[DataFile], more: More) -> None:
        """Commit files that were written below the table, and are whole."""
        self._activate()
        lines = (msgspec.json.encode(add_action(file, data_change=True)).decode() for file in files)
        self._commit(self._sequence([self._delta.actions.Action.fromJson(line) for line in lines]), more)

    def _activate(self) -> None:
        """Give this thread the session: Delta asks the thread for it when it has to read a table's log."""
        sessions = SparkSession._get_j_spark_session_class(self._jvm)  # noqa: SLF001 - PySpark has no API for it
        sessions.setActiveSession(self._spark._jsparkSession)  # noqa: SLF001

    def _commit(self, added: Any, more: More) -> None:  # noqa: ANN401 - of the JVM
        actions = self._jvm.java.util.ArrayList(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(added))
        now = self._jvm.scala.Option.apply(int(time.time() * 1000))
        for app, last in {self.app_id: self._version, **more(self._last)}.items():
            actions.add(self._delta.actions.SetTransaction(app, last, now))
        none = self._jvm.scala.Option.empty()
        mode = self._jvm.org.apache.spark.sql.SaveMode.Append
        # The fourth is the user's metadata.
        append = getattr(self._delta, "DeltaOperations$Write")(
            mode, none, none, self._jvm.scala.Option.apply(self.app_id), *[none] * 5
        )
        self.committed = self._transaction.commit(self._sequence(actions), append)

    def _sequence(self, items: Any) -> Any:  # noqa: ANN401 - of the JVM
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(items)
