"""The audit rows that exist already after a restore: a replay recomputes and compares them instead of writing them.

```
restored state ──────── replayed ────────┐ covered ──── decided normally ────>
                 rows must equal Delta's │          rows are written
```

After a loss they cannot be equal, because lost operations led to them: rows below `compared_from` are not compared.

The record is part of the restored state, so a replay that is killed continues as a replay.
"""

from typing import ClassVar

import msgspec

from broker_state.store.rocks_store import META, RocksStore
from broker_state.store.value_format import StoredRecord

__all__ = ["NO_REPLAY", "REPLAY_KEY", "Replay", "replay_of"]

REPLAY_KEY = b"replay"


class Replay(StoredRecord, msgspec.Struct, frozen=True, kw_only=True):
    """The record of a restore.

    Attributes:
        restored_from: The candidate that was restored.
        covered: By table and partition, the Kafka offset from which on the table had no rows.
        lost: The losses of this restore, one line each.
        compared_from: By table and partition, the Kafka offset below which rows come from lost operations.
        since_loss: State epochs since the last restore with losses; empty: the log leads to the whole state.
        whole: By table, the last apply_seq of each earlier state epoch up to which it had all rows.
        table_version: By table, the Delta version that this was read from.
    """

    STORED_AS: ClassVar[str] = "replay"

    restored_from: str
    covered: dict[str, dict[int, int]] = {}
    lost: list[str] = []
    compared_from: dict[str, dict[int, int]] = {}
    since_loss: list[str] = []
    whole: dict[str, dict[str, int]] = {}
    table_version: dict[str, int] = {}


NO_REPLAY = Replay(restored_from="")
"""The record of a state that was never restored."""


def replay_of(store: RocksStore) -> Replay:
    """Return the record of the last restore, or `NO_REPLAY`."""
    stored = store.get(META, REPLAY_KEY)
    return NO_REPLAY if stored is None else Replay.decode(stored)
