"""After a restore: which audit rows there are already, so that they are recomputed and compared, and not written twice.

```
restored state ──────── replayed ────────┐ covered ──── decided as ever ────>
                 rows must equal Delta's │          rows are written
```

The record is part of the restored state, so a replay that is killed goes on as a replay.
"""

from typing import Self

import msgspec

from broker_state.stored import FORMAT_1, read_stored

__all__ = ["REPLAY_KEY", "Replay"]

REPLAY_KEY = b"replay"


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore found: `covered` is, by table and partition, the Kafka offset from which on it has no rows."""

    restored_from: str
    covered: dict[str, dict[int, int]] = {}
    lost: list[str] = []
    """What the log had lost, and was accepted: one line for each partition."""

    def encode(self) -> bytes:
        """Format byte and MessagePack."""
        return FORMAT_1 + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises CorruptValueError for another format byte or other fields."""
        return read_stored("replay", FORMAT_1, value, lambda data: msgspec.msgpack.decode(data, type=cls))
