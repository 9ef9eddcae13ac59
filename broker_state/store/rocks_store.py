"""The state on disk: RocksDB in raw mode, one synced WriteBatch per micro-batch. The one import of rocksdict.

Column families of the job's state, and of the store of its builder:

    state, ops, deadlines   the state of the kernel (keys.py)
    queues, units           consume queues: their records, and their blocks and pages (consume_queue)
    outbox                  entries that are decided and not yet delivered: kind u8, apply_seq u64, number u32
    meta                    how far the log is decided, or the topics are read

After a failed write the store refuses further work: RocksDB may have applied a part of the batch, and nothing is
certain until the store is opened again. The process must stop.
"""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ColumnFamily,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from broker_state.store.keys import DeadlineRef, deadline_key, end_of_prefix, read_deadline_key
from broker_state.store.overlay import DEADLINES, OPS, STATE, Change, Family, Overlay
from popstream.wire.base_errors import RESTORE, Corrupt, Invalid, PopstreamError, Unavailable

__all__ = [
    "BUILDER_FAMILIES",
    "FAMILIES",
    "META",
    "OUTBOX",
    "QUEUES",
    "UNITS",
    "DiskFull",
    "Erasure",
    "FrozenState",
    "RocksStore",
    "StoreStopped",
]

OUTBOX: Family = "outbox"
META: Family = "meta"
QUEUES: Family = "queues"
UNITS: Family = "units"
FAMILIES = (STATE, OPS, DEADLINES, OUTBOX, META)
BUILDER_FAMILIES = (QUEUES, UNITS, OUTBOX, META)

Erasure = tuple[Family, bytes, bytes]
"""(family, first key, end): deletes all keys in [first, end)."""

_BLOCK_CACHE_BYTES = 32 * 1024 * 1024
_WRITE_BUFFER_BYTES = 16 * 1024 * 1024
_WAL_BYTES = 256 * 1024 * 1024


class StoreStopped(Unavailable):
    """A read or a write failed; the stored state is certain again once the store is reopened."""


class DiskFull(StoreStopped):
    """The store cannot be opened because the disk is full. It is unchanged."""


class RocksStore:
    """A `Kv` on disk. One process owns it; others open it read-only, and only when no job runs.

    Raises:
        Invalid: There is no store, or another process has it open.
        DiskFull: The disk is full.
        Corrupt: The files are damaged. Methods that read raise this too.
        StoreStopped: Raised by methods that read: a read failed.
    """

    def __init__(self, path: Path, families: Iterable[Family] = FAMILIES, *, read_only: bool = False) -> None:
        if not read_only:
            path.mkdir(parents=True, exist_ok=True)
        names = tuple(families)
        access = AccessType.read_only(error_if_log_file_exist=False) if read_only else AccessType.read_write()
        try:
            self._db = Rdict(
                str(path),
                options=_options(),
                column_families={name: _options() for name in names},
                access_type=access,
            )
        except Exception as error:  # rocksdict raises bare Exception
            raise _unopenable(path, str(error)) from error
        self._families: dict[Family, Rdict] = {name: self._db.get_column_family(name) for name in names}
        self._handles: dict[Family, ColumnFamily] = {name: self._db.get_column_family_handle(name) for name in names}
        self._sync = WriteOptions()
        self._sync.sync = True
        self._failed: Exception | None = None
        self.batches_written = 0
        """WriteBatches that this process wrote, one per micro-batch."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See `Kv.get`."""
        try:
            value = self._families[family].get(key)
        except Exception as error:  # rocksdict raises bare Exception
            raise _unreadable(error) from error
        assert value is None or isinstance(value, bytes)
        return value

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """See `Kv.get_many`."""
        try:
            values = self._families[family].get([*keys]) if keys else []
        except Exception as error:  # rocksdict raises bare Exception
            raise _unreadable(error) from error
        assert isinstance(values, list)
        return values

    def scan(self, family: Family, first: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of [first, end), in order."""
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        iterator = self._families[family].iter(options)
        try:
            iterator.seek(first)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()  # after an error the iterator ends, and only this call raises it
        except Exception as error:  # rocksdict raises bare Exception
            raise _unreadable(error) from error

    def deadlines(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:
        """See `Kv.deadlines`."""
        first = queue if after is None else deadline_key(queue, after) + b"\0"
        found: list[DeadlineRef] = []
        for key, _ in self.scan(DEADLINES, first, end_of_prefix(queue)):
            ref = read_deadline_key(queue, key)
            if ref.deadline_ms > until_ms or len(found) == limit:
                break
            found.append(ref)
        return found

    def frozen(self) -> "FrozenState":
        """Return a view of the `state` family as the last WriteBatch left it; later writes do not show."""
        return FrozenState(self._families[STATE])

    def write(self, overlay: Overlay, more: Iterable[Change] = ()) -> int:
        """Write one synced WriteBatch: the changes of the overlay, and `more` (outbox, applied); return its bytes.

        Raises:
            StoreStopped: The write failed, or an earlier one did.
        """
        erasures = ((STATE, first, end) for first, end in overlay.erasures())
        size = self.write_changes(itertools.chain(overlay.changes(), more), erasures)
        overlay.written()
        return size

    def write_changes(self, changes: Iterable[Change], erasures: Iterable[Erasure] = ()) -> int:
        """Write one synced WriteBatch: the erasures, then the changes; return its bytes.

        Raises:
            StoreStopped: The write failed, or an earlier one did.
        """
        if self._failed is not None:
            msg = f"the store stopped: {self._failed}"
            raise StoreStopped(msg)
        batch = WriteBatch(raw_mode=True)
        handles = self._handles
        for family, first, end in erasures:
            batch.delete_range(first, end, handles[family])
        put, delete = batch.put, batch.delete
        for family, key, value in changes:
            if value is None:
                delete(key, handles[family])
            else:
                put(key, value, handles[family])
        size = batch.size_in_bytes()
        try:
            self._db.write(batch, self._sync)
        except Exception as error:  # rocksdict raises bare Exception, and any of them is final
            self._failed = error
            msg = f"the write failed: {error}"
            raise StoreStopped(msg) from error
        self.batches_written += 1
        return size

    def checkpoint(self, folder: Path) -> None:
        """Copy the store as of now to `folder`, which must not exist; on the same disk most files are hard links.

        Raises:
            Unavailable: The disk is full, or the folder exists.
        """
        try:
            Checkpoint(self._db).create_checkpoint(str(folder))
        except Exception as error:  # rocksdict raises bare Exception
            msg = f"no snapshot can be made in {folder}: {error}"
            raise Unavailable(msg, subject=str(folder)) from error

    def close(self) -> None:
        """Release the files."""
        self._families.clear()
        self._handles.clear()
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FrozenState:
    """A `Kv` of the `state` family at one moment; it has no other family."""

    def __init__(self, state: Rdict) -> None:
        self._snapshot = state.snapshot()

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See `Kv.get`."""
        assert family == STATE, "only the state is frozen"
        try:
            value = self._snapshot[key]  # not by `iter`, which shows later writes (rocksdict 0.3.29)
        except Exception as error:  # rocksdict raises bare Exception
            if str(error) != "key not found":
                raise _unreadable(error) from error
            return None
        assert isinstance(value, bytes)
        return value

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """See `Kv.get_many`."""
        return [self.get(family, key) for key in keys]

    def deadlines(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:  # noqa: ARG002 - a Kv
        """Return none: a view lets no deadline take effect."""
        return []


def _unopenable(path: Path, said: str) -> PopstreamError:
    message = f"cannot open the state in {path}: {said}"
    if "No space left" in said:
        return DiskFull(message, subject=str(path))
    # RocksDB reports a missing table file as corruption, and a missing manifest by its name.
    if "Corruption" in said or "MANIFEST" in said:
        return Corrupt(f"{message}: {RESTORE}", subject=str(path))
    return Invalid(message, subject=str(path))


def _unreadable(error: Exception) -> PopstreamError:
    message = f"the state cannot be read: {error}"
    if "Corruption" in str(error):
        return Corrupt(f"{message}: {RESTORE}")
    return StoreStopped(message)


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(_WAL_BYTES)
    options.set_max_open_files(512)
    table = BlockBasedOptions()
    table.set_block_cache(_cache)
    table.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(table)
    return options


_cache = Cache(_BLOCK_CACHE_BYTES)
