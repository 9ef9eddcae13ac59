"""The table `owners`: a row for each job that has taken the prefix and started, which it writes once Delta takes it.

Kafka's record of the owner knows the last one only. No other row depends on this table: a job that cannot write to it
says so, and goes on.
"""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession

from checkpoints.prefix_owner import Owner
from connectors.delta.all_columns import with_all_columns
from connectors.delta.exactly_once import ExactlyOnceTable
from connectors.delta.spark_errors import SPARK_ERRORS
from connectors.delta.tables import OWNERS
from connectors.java_errors import first_line
from popstream import __version__
from popstream.wire.base_errors import PopstreamError

__all__ = ["OwnerTable", "owner_row"]

_log = structlog.get_logger(__name__)


def owner_row(prefix: str, owner: Owner, state_epoch: str) -> pa.Table:
    """Return the row of an owner.

    Args:
        prefix: The prefix that it has taken.
        owner: Its record.
        state_epoch: Identity of the state by which it decides.
    """
    row = {
        "prefix": prefix,
        "term": owner.term,
        "since_ms": owner.since_ms,
        "host": owner.host,
        "pid": owner.pid,
        "folder": owner.folder,
        "version": __version__,
        "state_epoch": state_epoch,
        "ops_topic_id": owner.ops_topic_id,
        "took_over_from": owner.took_over_from or None,
    }
    return with_all_columns(OWNERS, pa.table({name: [value] for name, value in row.items()}), {})


class OwnerTable:
    """Writes the row of this job, once.

    Args:
        spark: Session with Delta.
        root: Folder of the tables.
        pipeline: Name of the pipeline, as for the audit tables.
        prefix: The prefix that this job has taken.
        owner: Its record as the owner.
        state_epoch: Identity of the state by which it decides.
        require_ownership: Raises if another job may write to the tables now.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        pipeline: str,
        prefix: str,
        owner: Owner,
        state_epoch: str,
        require_ownership: Callable[[], None],
    ) -> None:
        self._spark = spark
        self._root = root
        self._pipeline = pipeline
        self._owner = owner
        self._row = owner_row(prefix, owner, state_epoch)
        self._require_ownership = require_ownership
        self._is_written = False
        self._problem: str | None = None

    def write(self) -> None:
        """Write the row unless it is written. What goes wrong is logged: the next call tries again."""
        if self._is_written:
            return
        try:
            # The session is new with each ownership, and its term the only version: a row is never written twice.
            table = ExactlyOnceTable(
                self._spark,
                self._root,
                OWNERS,
                self._pipeline,
                self._owner.session,
                require_ownership=self._require_ownership,
            )
            if table.delivered < self._owner.term:
                table.append([self._row], self._owner.term)
        except (PopstreamError, OSError, *SPARK_ERRORS) as error:
            problem = first_line(error)
            if problem != self._problem:
                _log.warning("owner_not_written", table=OWNERS.name, error=problem)
            self._problem = problem
        else:
            self._is_written = True
