"""After a restore: which audit rows there are already, so that they are recomputed and compared, and not written twice.

```
restored state ──────── replayed ────────┐ covered ──── decided as ever ────>
                 rows must equal Delta's │          rows are written
```

The record is part of the restored state, so a replay that is killed goes on as a replay.
"""

from typing import Self

import msgspec

from broker_state.errors import CorruptValueError

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
        return b"\x01" + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises CorruptValueError for another format byte or other fields."""
        if value[:1] != b"\x01":
            raise CorruptValueError("replay", value)
        try:
            return msgspec.msgpack.decode(value[1:], type=cls)
        except msgspec.DecodeError as error:
            raise CorruptValueError("replay", value) from error
