"""Delta's transactions as this project uses them: one application for each table and state epoch.

```
txnAppId      pipeline/table/state_epoch
txnVersion    the last apply_seq of which the table has the rows
```
"""

from collections.abc import Mapping
from pathlib import Path

from connectors.delta.table_log import require_table_log
from connectors.delta.tables import table_path

__all__ = ["app_id", "known_versions", "versions_by_epoch"]


def app_id(pipeline: str, table: str, state_epoch: str) -> str:
    """Of one writer.

    >>> app_id("apply_ops", "operations", "9f3b")
    'apply_ops/operations/9f3b'
    """
    return f"{pipeline}/{table}/{state_epoch}"


def versions_by_epoch(txns: Mapping[str, int], pipeline: str, table: str) -> dict[str, int]:
    """By state epoch the last apply_seq, of transactions of which some are those of other pipelines and tables.

    >>> versions_by_epoch({"apply_ops/operations/9f3b": 12, "apply_ops/rejected/9f3b": 3}, "apply_ops", "operations")
    {'9f3b': 12}
    """
    family = app_id(pipeline, table, "")
    return {app.removeprefix(family): last for app, last in txns.items() if app.startswith(family)}


def known_versions(root: Path, table: str, pipeline: str) -> tuple[int, dict[str, int]]:
    """(newest version of a table, the last apply_seq of each state epoch that ever wrote to it), as Delta remembers it.

    Raises:
        Unavailable: There is no table.
        Corrupt: As `read_table_log` does.
    """
    log = require_table_log(table_path(root, table))
    return log.version, versions_by_epoch(log.txns, pipeline, table)
