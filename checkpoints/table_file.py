"""Verifies RocksDB's table files (`*.sst`) block by block, without opening a store: rocksdict has no call for it.

```
data block ... data block  filter, index, properties, range deletions  metaindex  footer (53 bytes)
```

Each block ends with a byte for its compression and a checksum of 4 bytes; blocks and footer cover every byte of a file.
`RocksStore` fixes the format that is read here: version 6 with XXH3 and Snappy. A file in use never changes, and may be
read while the store deletes it.

Format: `table/format.cc`, `table/block_based/` and `util/hash.cc` of RocksDB 10.
"""

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import xxhash

from broker_state.store.rocks_store import RocksStore
from popstream.wire.base_errors import Corrupt, Unavailable

__all__ = ["PIECE_BYTES", "check_table", "name_in_folder", "require_replaced", "verify_table", "verify_tables"]

PIECE_BYTES = 64 * 1024
"""Bytes of data blocks that are read at a time."""

_FOOTER = struct.Struct("<B4sIII24xIQ")
_MAGIC = 0x88E241B785F4CFF7
_EXTENDED_MAGIC = b"\x3e\x00\x7a\x00"
_FORMAT_VERSION = 6
_XXH3 = 4
_LAST_BYTE_FACTOR = 0x6B9083D9
_UINT32 = 0xFFFFFFFF
_UNCOMPRESSED, _SNAPPY = 0, 1
_TRAILER = struct.Struct("<BI")
"""Compression and checksum, at the end of each block."""

_INDEX = b"rocksdb.index"

_OF_THIS_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM})
"""Errors that say nothing about the file."""


class _Handle(NamedTuple):
    """Place of a block, without its trailer."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size + _TRAILER.size


class _Damaged(Exception):  # noqa: N818 - becomes Corrupt, which names the file
    pass


def verify_tables(store: RocksStore) -> None:
    """Verify every table file that a store uses.

    Raises:
        Corrupt: As in `verify_table`, or a file is missing.
    """
    for name in store.table_files():
        try:
            verify_table(store.path / name)
        except FileNotFoundError:
            require_replaced(store, name)


def require_replaced(store: RocksStore, name: str) -> None:
    """Raise Corrupt if a table file that was not found is in use: a compaction has not replaced it."""
    if name in store.table_files():
        subject = name_in_folder(store.path / name)
        message = f"{subject} is missing"
        raise Corrupt(message, subject=subject)


def name_in_folder(path: Path) -> str:
    """Return the name of a table file in the folder of the job.

    >>> name_in_folder(Path("/var/job/state/000012.sst"))
    'state/000012.sst'
    """
    return f"{path.parent.name}/{path.name}"


def verify_table(path: Path) -> None:
    """Verify every block of a table file.

    Raises:
        Corrupt: It is damaged. The subject is its `name_in_folder`.
    """
    for _ in check_table(path):
        pass


def check_table(path: Path) -> Iterator[int]:
    """Verify a table file in pieces of about `PIECE_BYTES`, and yield the bytes of each, so that a caller can pause.

    Raises:
        Corrupt: As in `verify_table`.
        Unavailable: The process may not read it, or has too many open files.
        FileNotFoundError: The file does not exist.
    """
    name = name_in_folder(path)
    try:
        with path.open("rb", buffering=0) as file:
            yield from _Table(file.fileno()).check()
    except FileNotFoundError:
        raise
    except (_Damaged, OSError) as error:
        if isinstance(error, OSError) and error.errno in _OF_THIS_PROCESS:
            message = f"{name} cannot be read: {error.strerror}"
            raise Unavailable(message, subject=name) from error
        message = f"{name} is damaged: {error}"
        raise Corrupt(message, subject=name) from error


class _Table:
    """One open table file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._base_checksum = 0

    def check(self) -> Iterator[int]:
        footer_at = self._size - _FOOTER.size
        size = self._metaindex_size(footer_at)
        metaindex = _Handle(footer_at - _TRAILER.size - size, size)
        yield _FOOTER.size
        others = {key: _handle(value, 0)[0] for key, value in _entries(self._content(metaindex))}
        yield metaindex.size
        if _INDEX not in others:
            message = "it has no index"
            raise _Damaged(message)
        for handle in others.values():
            self._verify(self._read(handle), handle, handle.offset)
            yield handle.size
        piece: list[_Handle] = []
        for handle in _data_blocks(self._content(others[_INDEX])):
            if piece and handle.end - piece[0].offset > PIECE_BYTES:
                yield self._check_piece(piece)
                piece = []
            piece.append(handle)
        if piece:
            yield self._check_piece(piece)

    def _metaindex_size(self, footer_at: int) -> int:
        if footer_at < 0:
            message = f"it ends after {self._size} bytes"
            raise _Damaged(message)
        data = bytes(self._read_at(footer_at, _FOOTER.size))
        checksum_type, extended_magic, stored, base_checksum, size, version, magic = _FOOTER.unpack(data)
        if (checksum_type, extended_magic, version, magic) != (_XXH3, _EXTENDED_MAGIC, _FORMAT_VERSION, _MAGIC):
            message = f"its footer is not one of format {_FORMAT_VERSION}"
            raise _Damaged(message)
        self._base_checksum = base_checksum
        unsigned = data[:5] + bytes(4) + data[9:]
        if stored != self._checksum(unsigned[:-1], unsigned[-1], footer_at) or size > footer_at - _TRAILER.size:
            message = "footer checksum mismatch"
            raise _Damaged(message)
        return int(size)

    def _check_piece(self, piece: list[_Handle]) -> int:
        """Verify adjacent data blocks; return their bytes."""
        start = piece[0].offset
        data = self._read_at(start, piece[-1].end - start)
        for handle in piece:
            self._verify(data, handle, start)
        return len(data)

    def _content(self, handle: _Handle) -> bytes:
        """Return the verified and decompressed content of a block."""
        data = self._read(handle)
        compression = self._verify(data, handle, handle.offset)
        content = bytes(data[: handle.size])
        if compression == _UNCOMPRESSED:
            return content
        if compression == _SNAPPY:
            size, _ = _varint(content, 0)
            decompressed: bytes = pa.decompress(content, size, codec="snappy", asbytes=True)
            return decompressed
        message = f"the block at byte {handle.offset} has an unknown compression, {compression}"
        raise _Damaged(message)

    def _verify(self, data: memoryview, handle: _Handle, start: int) -> int:
        """Verify one block of `data`, which was read from byte `start` on; return its compression."""
        at = handle.offset - start
        end = at + handle.size
        compression, stored = _TRAILER.unpack_from(data, end)
        if stored != self._checksum(data[at:end], compression, handle.offset):
            message = f"block checksum mismatch at byte {handle.offset}, {handle.size} bytes"
            raise _Damaged(message)
        return int(compression)

    def _checksum(self, data: memoryview | bytes, last_byte: int, offset: int) -> int:
        """Return the checksum of a block: of its content, its compression, and its place."""
        checksum = (xxhash.xxh3_64_intdigest(data) ^ last_byte * _LAST_BYTE_FACTOR) & _UINT32
        of_place = self._base_checksum ^ (offset + (offset >> 32)) & _UINT32 if self._base_checksum else 0
        return (checksum + of_place) & _UINT32

    def _read(self, handle: _Handle) -> memoryview:
        return self._read_at(handle.offset, handle.end - handle.offset)

    def _read_at(self, offset: int, size: int) -> memoryview:
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            message = f"it ends after {self._size} bytes"
            raise _Damaged(message)
        return memoryview(data)


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block."""
    end = _end_of_entries(block)
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        added, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + added]
        at += added
        yield key, block[at : at + size]
        at += size


def _data_blocks(index: bytes) -> Iterator[_Handle]:
    """Yield the places of the data blocks, in order. Only the first entry of a group has the offset of its block."""
    end = _end_of_entries(index)
    at, last = 0, _Handle(0, 0)
    while at < end:
        shared, at = _varint(index, at)
        added, at = _varint(index, at)
        at += added
        if shared == 0:
            last, at = _handle(index, at)
        else:
            zigzag, at = _varint(index, at)
            last = _Handle(last.end, last.size + (zigzag >> 1 ^ -(zigzag & 1)))
        yield last


def _end_of_entries(block: bytes) -> int:
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    return len(block) - 4 - 4 * int(restarts)


def _handle(data: bytes, at: int) -> tuple[_Handle, int]:
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return _Handle(offset, size), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at byte `at`, seven bits a byte, and the place after it.

    >>> _varint(bytes([0x96, 0x01, 0x07]), 0)
    (150, 2)
    """
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
