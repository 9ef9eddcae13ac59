"""A store in memory that notes which state keys are read."""

from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import STATE, Family

__all__ = ["CountingKv"]


class CountingKv(MemoryKv):
    def __init__(self) -> None:
        super().__init__()
        self.read: list[bytes] = []

    def get(self, family: Family, key: bytes) -> bytes | None:
        if family == STATE:
            self.read.append(key)
        return super().get(family, key)
