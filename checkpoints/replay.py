"""After a restore: which audit rows there are already, so that they are recomputed and compared, and not written twice.

```
restored state ──────── replayed ────────┐ covered ──── decided as ever ────>
                 rows must equal Delta's │          rows are written
```

After a loss they cannot be equal: what was lost has led to them. Rows below `compared_from` are left as they are.

The record is part of the restored state, so a replay that is killed goes on as a replay.
"""

from typing import Self

import msgspec

from broker_state.store.rocks_store import META, RocksStore
from broker_state.store.stored import FORMAT_1, read_stored

__all__ = ["NO_REPLAY", "REPLAY_KEY", "Replay", "replay_of"]

REPLAY_KEY = b"replay"


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore found.

    Attributes:
        restored_from: What was put in place.
        covered: By table and partition, the Kafka offset from which on it had no rows.
        lost: What was given up with this restore: a line each.
        compared_from: By table and partition, the Kafka offset below which its rows come from what has been lost.
        since_loss: State epochs from the last restore on that gave something up; empty: the log leads to all of it.
        whole: By table, the last apply_seq of each earlier state epoch up to which its rows were there.
        table_version: By table, the version of Delta that this was read from.
    """

    restored_from: str
    covered: dict[str, dict[int, int]] = {}
    lost: list[str] = []
    compared_from: dict[str, dict[int, int]] = {}
    since_loss: list[str] = []
    whole: dict[str, dict[str, int]] = {}
    table_version: dict[str, int] = {}

    def encode(self) -> bytes:
        """Format byte and MessagePack."""
        return FORMAT_1 + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises CorruptValueError for another format byte or other fields."""
        return read_stored("replay", FORMAT_1, value, lambda data: msgspec.msgpack.decode(data, type=cls))


NO_REPLAY = Replay(restored_from="")
"""Of a state that was never restored."""


def replay_of(store: RocksStore) -> Replay:
    """That of the last restore; `NO_REPLAY` when there was none."""
    stored = store.get(META, REPLAY_KEY)
    return NO_REPLAY if stored is None else Replay.decode(stored)
