"""Delta's transaction identifiers of this project: one application per table and state epoch.

```
txnAppId      pipeline/table/state_epoch
txnVersion    the last apply_seq whose rows are in the table
```
"""

from collections.abc import Mapping
from pathlib import Path

from connectors.delta.log.table_log import require_table_log
from connectors.delta.tables import table_path

__all__ = ["app_id", "epochs_of", "known_versions", "versions_by_epoch"]


_APP_ID_PARTS = 3


def app_id(pipeline: str, table: str, state_epoch: str) -> str:
    """Return the `txnAppId` of one writer.

    >>> app_id("apply_ops", "operations", "9f3b")
    'apply_ops/operations/9f3b'
    """
    return f"{pipeline}/{table}/{state_epoch}"


def versions_by_epoch(txns: Mapping[str, int], pipeline: str, table: str) -> dict[str, int]:
    """Return the last apply_seq by state epoch, for one pipeline and table.

    >>> versions_by_epoch({"apply_ops/operations/9f3b": 12, "apply_ops/rejected/9f3b": 3}, "apply_ops", "operations")
    {'9f3b': 12}
    """
    family = app_id(pipeline, table, "")
    return {app.removeprefix(family): last for app, last in txns.items() if app.startswith(family)}


def epochs_of(txns: Mapping[str, int], table: str) -> set[str]:
    """Return every state epoch that has committed rows to a table.

    >>> epochs_of({"apply_ops/operations/9f3b": 12, "row_totals/9f3b/counted/after": 3}, "operations")
    {'9f3b'}
    """
    parts = (app.split("/") for app in txns)
    return {epoch for _, name, epoch in (each for each in parts if len(each) == _APP_ID_PARTS) if name == table}


def known_versions(root: Path, table: str, pipeline: str) -> tuple[int, dict[str, int]]:
    """Return (newest version of a table, last apply_seq of each state epoch that ever wrote to it).

    Raises:
        Unavailable: There is no table.
        Corrupt: As in `read_table_log`.
    """
    log = require_table_log(table_path(root, table))
    return log.version, versions_by_epoch(log.txns, pipeline, table)
