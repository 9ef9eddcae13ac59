"""What outlives the simulated process: the store, the tables, the topics, the lock; each with the ways it fails.

A process that is killed leaves all of it as it is. A power loss takes besides what nobody had synced: commits of
tables. What was handed to a producer and not confirmed may have arrived or not, in both cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import DEADLINES, Change, Family, Overlay
from popstream.wire.base_errors import Fenced

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Mapping


__all__ = ["Commit", "Disk", "MemoryStore", "Sent", "SimulatedProducer", "SimulatedTables"]

Record = tuple[int | None, bytes | None, bytes | None]
"""(partition, key, value)."""


class MemoryStore(MemoryKv):
    """`RocksStore` in memory: a WriteBatch happens or does not."""

    def __init__(self) -> None:
        super().__init__()
        self.hook: Callable[[str], None] = lambda _: None

    def copy(self) -> MemoryStore:
        """What another process finds that opens the same files now; this one goes on seeing its own."""
        other = type(self)()
        other.families = {family: dict(values) for family, values in self.families.items()}
        other._deadline_keys = list(self._deadline_keys)
        other.hook = self.hook
        return other

    def scan(self, family: Family, first: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """See `RocksStore.scan`; what is written meanwhile is not seen."""
        values = self.families.get(family, {})
        yield from [(key, values[key]) for key in sorted(values) if key >= first and (end is None or key < end)]

    def write(self, overlay: Overlay, more: Iterable[Change] = ()) -> int:  # type: ignore[override]
        """See `RocksStore.write`."""
        changes = list(more)
        self.hook("store_write")
        super().write(overlay)
        self._put(changes)
        self.hook("store_written")
        return 0

    def write_changes(self, changes: Iterable[Change]) -> int:
        """See `RocksStore.write_changes`."""
        self.hook("store_write")
        self._put(changes)
        self.hook("store_written")
        return 0

    def _put(self, changes: Iterable[Change]) -> None:
        for family, key, value in changes:
            assert family != DEADLINES
            values = self.families.setdefault(family, {})
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value


class Commit(NamedTuple):
    """One commit of a table: the rows of apply_seq up to `version`, in outbox slices."""

    state_epoch: str
    version: int
    slices: tuple[tuple[int, bytes], ...]


class Disk:
    """Everything durable of one job."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.commits: dict[str, list[Commit]] = {}
        self.synced: dict[str, int] = {}
        self.topics: dict[str, list[Record]] = {}
        self.owner = 0

    def commit(self, table: str, commit: Commit) -> None:
        """A table has one more commit; whether it lasts is another question."""
        self.commits.setdefault(table, []).append(commit)

    def publish(self, topic: str, record: Record) -> None:
        """A topic has one more record."""
        self.topics.setdefault(topic, []).append(record)

    def versions(self, table: str) -> dict[str, int]:
        """As Delta tells them: the last version of each state epoch."""
        return {commit.state_epoch: commit.version for commit in self.commits.get(table, ())}

    def lose_power(self) -> None:
        """What nobody has synced is gone."""
        for table, commits in self.commits.items():
            del commits[self.synced.get(table, 0) :]


class SimulatedTables:
    """`AuditFlusher` over the disk: the same contract, one writer for each life of the state."""

    def __init__(self, disk: Disk, state_epoch: str, hook: Callable[[str], None]) -> None:
        self._disk = disk
        self._state_epoch = state_epoch
        self._hook = hook
        self._committed: dict[str, int] = {}
        for table, commits in disk.commits.items():  # as `ExactlyOnceTable` does when it opens
            disk.synced[table] = len(commits)
            self._committed[table] = self._version(table)
        self._delivered = dict(self._committed)

    def delivered(self, table: str) -> int:
        """See `AuditFlusher.delivered`."""
        return self._delivered.get(table, -1)

    def committed(self) -> Mapping[str, int]:
        """See `AuditFlusher.committed`."""
        return {table: version for table, version in self._committed.items() if version >= 0}

    def flush(self, table: str, slices: Iterable[tuple[int, bytes]], upto: int) -> int:
        """See `AuditFlusher.flush`."""
        delivered = self.delivered(table)
        fresh = tuple((seq, data) for seq, data in slices if seq > delivered)
        if fresh:
            self._hook("table_commit")
            if self._disk.versions(table).get(self._state_epoch, -1) != self._committed.get(table, -1):
                message = f"another process writes to {table}"
                raise Fenced(message)
            self._disk.commit(table, Commit(self._state_epoch, upto, fresh))
            self._hook("table_committed")
            self._disk.synced[table] = len(self._disk.commits[table])
            self._hook("table_synced")
            self._committed[table] = upto
        self._delivered[table] = max(delivered, upto)
        return len(fresh)

    def _version(self, table: str) -> int:
        return self._disk.versions(table).get(self._state_epoch, -1)


class Sent:
    """A record that was handed over; confirmed later, or never."""

    def __init__(self, topic: str, record: Record) -> None:
        self.topic = topic
        self.record = record
        self._callbacks: list[Callable[[Any], object]] = []

    def add_callback(self, callback: Callable[[Any], object]) -> Sent:
        """Call it when Kafka has the record."""
        self._callbacks.append(callback)
        return self

    def add_errback(self, _: Callable[[Exception], object]) -> Sent:
        """Nothing is refused here."""
        return self

    def confirm(self) -> None:
        """Kafka has it."""
        for callback in self._callbacks:
            callback(None)


class SimulatedProducer:
    """Idempotent and in order: what is confirmed is there once."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: list[Sent] = []

    def send(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: list[tuple[str, bytes]],  # noqa: ARG002 - a producer's
    ) -> Sent:
        """Hand a record over."""
        sent = Sent(topic, (partition, key, value))
        self._waiting.append(sent)
        return sent

    def pump(self, count: int) -> None:
        """Kafka takes `count` of the records that wait."""
        arriving, self._waiting = self._waiting[:count], self._waiting[count:]
        for sent in arriving:
            self._disk.publish(sent.topic, sent.record)
            sent.confirm()

    def die(self, chance: random.Random) -> None:
        """The first few of what was on its way have arrived, and nobody hears of it."""
        for sent in self._waiting[: chance.randrange(len(self._waiting) + 1)]:
            self._disk.publish(sent.topic, sent.record)
        self._waiting = []

    def close(self, timeout: float | None = None) -> None:  # noqa: ARG002 - a producer's
        """Send the rest."""
        self.pump(len(self._waiting))
