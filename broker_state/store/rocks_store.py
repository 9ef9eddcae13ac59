"""The state on disk: RocksDB in raw mode, written by synced WriteBatches. The one import of rocksdict.

Column families of the job's state, and of the store of its builder:

    state, ops, deadlines   the state of the kernel (keys.py)
    queues, units           consume queues: their records, and their blocks and pages (consume_queue)
    outbox                  entries that are decided and not yet delivered: kind u8, apply_seq u64, number u32
    meta                    how far the log is decided, or the topics are read

After a failed write the store refuses further work: RocksDB may have applied a part of the batch, and nothing is
certain until the store is opened again. The process must stop.

rocksdict raises bare `Exception`, of which only the text says what happened. No such error leaves this module.
"""

import contextlib
import itertools
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ChecksumType,
    ColumnFamily,
    DBCompressionType,
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
    "DiskFailed",
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

_MOMENT_KEY = b"\0"
"""In each family: a number of the last WriteBatch. No other key begins so, and scans leave it out.

RocksDB's manifest lists the files of each family. One that was cut off, and opens without a word, may list those of
different moments: rocksdict flushes one family after the other when it closes. Then these numbers differ.
"""

_BLOCK_CACHE_BYTES = 32 * 1024 * 1024
_WRITE_BUFFER_BYTES = 16 * 1024 * 1024
_MEMTABLE_FILTER_RATIO = 0.02
"""Of the write buffer: 320 KiB of each memtable are a Bloom filter of its keys."""
_WAL_BYTES = 256 * 1024 * 1024


class StoreStopped(Unavailable):
    """A read or a write failed; the stored state is certain again once the store is reopened."""


class DiskFull(StoreStopped):
    """The store cannot be opened because the disk is full. It is unchanged."""


class DiskFailed(StoreStopped):
    """The disk has failed once. If it fails again at the same place after the store was reopened, that is Corrupt."""


class RocksStore:
    """A `Kv` on disk. One process owns it; others open it read-only, and only when no job runs.

    Raises:
        Invalid: There is no store, or another process has it open.
        DiskFull: The disk is full.
        Corrupt: The files are damaged. Every method raises this too: RocksDB may meet damage in a compaction, and then
            refuses writes, snapshots and an orderly close.
        StoreStopped: Raised by methods that read: a read failed.
        DiskFailed: Likewise, and by methods that write: the disk reported an I/O error. It is Corrupt once an earlier
            opening of the store in this process has met it in the same file.
    """

    def __init__(self, path: Path, families: Iterable[Family] = FAMILIES, *, read_only: bool = False) -> None:
        if not read_only:
            path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._disk = _Disk(path)
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
            raise _unopenable(path, _said(error)) from error
        self._families: dict[Family, Rdict] = {name: self._db.get_column_family(name) for name in names}
        self._handles: dict[Family, ColumnFamily] = {name: self._db.get_column_family_handle(name) for name in names}
        self._sync = WriteOptions()
        self._sync.sync = True
        self._failed: PopstreamError | None = None
        self.write_batches_written = 0
        """WriteBatches that this process wrote."""
        try:
            self._require_one_moment()
        except PopstreamError:
            with contextlib.suppress(PopstreamError):
                self.close()
            raise

    def _require_one_moment(self) -> None:
        moments = {self.get(name, _MOMENT_KEY) for name in self._families}
        if len(moments) > 1:  # a store that was written before there were such numbers has none
            message = f"the state in {self.path} is torn: its column families are of different moments"
            raise Corrupt(f"{message}: {RESTORE}", subject=str(self.path))

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See `Kv.get`."""
        try:
            value = self._families[family].get(key)
        except Exception as error:  # rocksdict raises bare Exception
            raise self._disk.unreadable(error) from error
        assert value is None or isinstance(value, bytes)
        return value

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """See `Kv.get_many`."""
        try:
            values = self._families[family].get([*keys]) if keys else []
        except Exception as error:  # rocksdict raises bare Exception
            raise self._disk.unreadable(error) from error
        assert isinstance(values, list)
        return values

    def scan(self, family: Family, first: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of [first, end), in order."""
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        try:
            iterator = self._families[family].iter(options)
            iterator.seek(first)
            while iterator.valid():
                key = iterator.key()
                if key != _MOMENT_KEY:
                    yield key, iterator.value()
                iterator.next()
            iterator.status()  # after an error the iterator ends, and only this call raises it
        except Exception as error:  # rocksdict raises bare Exception
            raise self._disk.unreadable(error) from error

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
        return FrozenState(self._families[STATE], self._disk)

    def write(self, overlay: Overlay, more: Iterable[Change] = ()) -> int:
        """Write one synced WriteBatch: the changes of the overlay, and `more` (outbox, applied); return its bytes.

        Raises:
            StoreStopped: The write failed, or an earlier one did.
            Corrupt: It failed because RocksDB has met a damaged file.
        """
        erasures = ((STATE, first, end) for first, end in overlay.erasures())
        size = self.write_changes(itertools.chain(overlay.changes(), more), erasures)
        overlay.written()
        return size

    def write_changes(self, changes: Iterable[Change], erasures: Iterable[Erasure] = ()) -> int:
        """Write one synced WriteBatch: the erasures, then the changes; return its bytes.

        Raises:
            StoreStopped: The write failed, or an earlier one did.
            Corrupt: It failed because RocksDB has met a damaged file.
        """
        if self._failed is not None:
            message = f"the store stopped: {self._failed.message}"
            raise type(self._failed)(message, subject=str(self.path)) from self._failed
        write_batch = WriteBatch(raw_mode=True)
        handles = self._handles
        for family, first, end in erasures:
            write_batch.delete_range(first, end, handles[family])
        put, delete = write_batch.put, write_batch.delete
        for family, key, value in changes:
            if value is None:
                delete(key, handles[family])
            else:
                put(key, value, handles[family])
        moment = self._db.latest_sequence_number().to_bytes(8, "big")
        # No variable may hold a handle: in the traceback of an error it would keep the files open.
        for family in handles:
            put(_MOMENT_KEY, moment, handles[family])
        size = write_batch.size_in_bytes()
        try:
            self._db.write(write_batch, self._sync)
        except Exception as error:  # rocksdict raises bare Exception, and any of them is final
            self._failed = self._disk.failure("the write failed", error)
            raise self._failed from error
        self._disk.written()
        self.write_batches_written += 1
        return size

    def copy_to(self, folder: Path) -> None:
        """Copy the store as of now to `folder`, which must not exist; on the same disk most files are hard links.

        Raises:
            Unavailable: The disk is full, or the folder exists.
            Corrupt: RocksDB has met a damaged file.
        """
        try:
            Checkpoint(self._db).create_checkpoint(str(folder))
        except Exception as error:  # rocksdict raises bare Exception
            said = _said(error)
            message = f"no snapshot can be made in {folder}: {said}"
            if _is_damage(said):
                raise Corrupt(f"{message}: {RESTORE}", subject=str(self.path)) from error
            raise Unavailable(message, subject=str(folder)) from error

    def table_files(self) -> list[str]:
        """Return the names of the table files in use. Each is complete, and never changes."""
        return sorted(file["name"].lstrip("/") for file in self._db.live_files())

    @property
    def last_sequence(self) -> int:
        """RocksDB's number of the last change: a copy with a lower one lacks changes."""
        return self._db.latest_sequence_number()

    def close(self) -> None:
        """Release the files, whatever happens.

        Raises:
            Corrupt: RocksDB has met a damaged file. What was written is in its write-ahead log.
            StoreStopped: Likewise, because the disk is full or fails.
        """
        self._families.clear()
        self._handles.clear()
        try:
            self._db.close()
        except Exception as error:  # rocksdict raises bare Exception
            raise self._disk.failure("the state cannot be closed in order", error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store. An error meanwhile does not replace the one that ended the block."""
        try:
            self.close()
        except PopstreamError as at_close:
            if error is None:
                raise
            error.add_note(at_close.message)


class FrozenState:
    """A `Kv` of the `state` family at one moment; it has no other family."""

    def __init__(self, state: Rdict, disk: "_Disk") -> None:
        self._snapshot = state.snapshot()
        self._disk = disk

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See `Kv.get`."""
        assert family == STATE, "only the state is frozen"
        try:
            value = self._snapshot[key]  # not by `iter`, which shows later writes (rocksdict 0.3.29)
        except Exception as error:  # rocksdict raises bare Exception
            if str(error) != "key not found":
                raise self._disk.unreadable(error) from error
            return None
        assert isinstance(value, bytes)
        return value

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """See `Kv.get_many`."""
        return [self.get(family, key) for key in keys]

    def deadlines(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:  # noqa: ARG002 - a Kv
        """Return none: a view lets no deadline take effect."""
        return []


def _said(error: Exception) -> str:
    """Return what RocksDB said, on one line."""
    return " ".join(str(error).split())


def _unopenable(path: Path, said: str) -> PopstreamError:
    message = f"cannot open the state in {path}: {said}"
    if "No space left" in said:
        return DiskFull(message, subject=str(path))
    is_in_use = "While lock file" in said or "lock hold by current process" in said
    # RocksDB reports a missing table file as corruption, and a missing manifest by its name.
    is_damaged = "Corruption" in said or "MANIFEST" in said
    if is_damaged or (_has_files(path) and not is_in_use and "Permission denied" not in said):
        return Corrupt(f"{message}: {RESTORE}", subject=str(path))
    return Invalid(message, subject=str(path))


def _has_files(path: Path) -> bool:
    """Return whether the folder holds more than RocksDB writes before it fails for want of a store."""
    return any(path.glob("*.sst")) or any(path.glob("MANIFEST-*"))


class _Disk:
    """Tells for one opening of a store whether an error of RocksDB is damage, which a restart meets again, or passes.

    An I/O error may pass: of a disk at the other end of a network, for instance. A sector that cannot be read fails
    again soon after the store was reopened, because the same work is done again.
    """

    _failed: ClassVar[dict[tuple[Path, str], tuple["_Disk", float]]] = {}
    """By store and file, the last opening in this process that met an I/O error there, and when (`time.monotonic`)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def unreadable(self, error: Exception) -> PopstreamError:
        """Return the error for a read that failed."""
        return self.failure("the state cannot be read", error)

    def failure(self, what: str, error: Exception) -> PopstreamError:
        """Return the error for one that RocksDB raised."""
        said, subject = _said(error), str(self._path)
        message = f"{what}: {said}"
        if _is_damage(said):
            return Corrupt(f"{message}: {RESTORE}", subject=subject)
        if _IO_ERROR not in said:
            return StoreStopped(message, subject=subject)
        found = _TABLE_FILE.search(said)
        place = (self._path, found[0] if found else _OTHER_FILES)
        now_s = time.monotonic()
        earlier, at_s = self._failed.get(place, (self, now_s))
        self._failed[place] = self, now_s
        if earlier is not self and now_s - at_s < _FAILS_AGAIN_S:
            return Corrupt(f"{message}: the disk has failed there twice: {RESTORE}", subject=subject)
        return DiskFailed(message, subject=subject, details=[f"if it fails again, {RESTORE}"])

    def written(self) -> None:
        """Note a write: what failed before in a file that was to be written has passed."""
        self._failed.pop((self._path, _OTHER_FILES), None)


_IO_ERROR = "Input/output error"
_FAILS_AGAIN_S = 3_600.0
"""A second I/O error in a file that comes later is one more of a kind that passes."""
_TABLE_FILE = re.compile(r"\d+\.sst\b")
_OTHER_FILES = ""
"""Those that each opening begins anew: a write-ahead log and a manifest."""
_NAMES_OF_FILES = re.compile(r"\.sst\b|\.log\b|MANIFEST-|CURRENT")


def _is_damage(said: str) -> bool:
    """Return whether RocksDB met damaged or missing files, which no further attempt finds whole.

    >>> _is_damage("Corruption: block checksum mismatch"), _is_damage("IO error: No space left on device")
    (True, False)
    >>> _is_damage("IO error: No such file or directory: While open a file for random read: /state/000009.sst")
    True
    """
    is_missing = "No such file or directory" in said or "Is a directory" in said
    return "Corruption" in said or (is_missing and _NAMES_OF_FILES.search(said) is not None)


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(_WAL_BYTES)
    options.set_max_open_files(512)
    # The manifest lists the files of all families as of one moment, but for those of an orderly close.
    options.set_atomic_flush(True)
    # Nearly all op_ids that are looked up are new: without a filter each costs a search of every memtable.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(_MEMTABLE_FILTER_RATIO)
    table = BlockBasedOptions()
    table.set_block_cache(_cache)
    table.set_bloom_filter(10, block_based=False)
    # RocksDB's defaults, stated because checkpoints/table_file.py reads the files.
    table.set_format_version(6)
    table.set_checksum_type(ChecksumType.xxh3())
    options.set_compression_type(DBCompressionType.snappy())
    options.set_block_based_table_factory(table)
    return options


_cache = Cache(_BLOCK_CACHE_BYTES)
