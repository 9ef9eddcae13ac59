"""A checksum in each commit that is made here: one that was damaged shows, also if it can still be read.

```
{"commitInfo":{..., "popstreamEmpty":[41], "popstreamChecksum":"8f3a01c2"}}
```

It is a CRC-32 of the version and of the commit, with zeros in place of the checksum: that of a commit in the place of
another one differs, too. It is in the commit, and not in a file beside it as Hadoop's, so that no crash leaves one
without the other, and Delta deletes both together. Readers of Delta pass over what they do not know in `commitInfo`.

A commit that somebody else has made, and not synced, may be empty after a power loss. The next commit made here names
the empty ones below it: any other one was emptied later.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from popstream.wire.decode_errors import DECODE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["checksum_problem", "known_empty", "with_checksum"]

_KEY: Final = "popstreamChecksum"
_EMPTY: Final = "popstreamEmpty"
_ZEROS: Final = b"0" * 8
_STORED: Final = re.compile(b'"%s":"([^"]*)"' % _KEY.encode())


class _Info(msgspec.Struct):
    empty: list[int] = msgspec.field(default_factory=list, name=_EMPTY)


class _First(msgspec.Struct):
    info: _Info = msgspec.field(name="commitInfo")


_decode_first = msgspec.json.Decoder(_First).decode


def with_checksum(version: int, actions: Sequence[Mapping[str, Any]], empty: Sequence[int]) -> bytes:
    """Return the lines of a commit.

    Args:
        version: The version that it makes.
        actions: Its actions; the first one is its `commitInfo`.
        empty: The commits just below it, if they are empty.
    """
    info = {**actions[0]["commitInfo"], **({_EMPTY: empty} if empty else {}), _KEY: _ZEROS.decode()}
    data = b"".join(msgspec.json.encode(action) + b"\n" for action in ({"commitInfo": info}, *actions[1:]))
    stored = _stored(data)
    assert stored is not None
    return _with(data, stored, _checksum(version, data))


def checksum_problem(version: int, data: bytes) -> str | None:
    """Return what is wrong with a commit by its checksum; None: nothing, or it has none."""
    stored = _stored(data)
    if stored is None or stored[1] == _checksum(version, _with(data, stored, _ZEROS)):
        return None
    return "its checksum differs"


def known_empty(data: bytes) -> list[int] | None:
    """Return the commits that were empty when a commit was made on top of them; None: it does not say."""
    if _stored(data) is None:
        return None
    try:
        return _decode_first(_first_line(data)).info.empty
    except DECODE_ERRORS:  # who reads it is told
        return None


def _stored(data: bytes) -> re.Match[bytes] | None:
    return _STORED.search(_first_line(data))


def _first_line(data: bytes) -> bytes:
    return data.partition(b"\n")[0]


def _with(data: bytes, stored: re.Match[bytes], checksum: bytes) -> bytes:
    return data[: stored.start(1)] + checksum + data[stored.end(1) :]


def _checksum(version: int, data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data, version & 0xFFFFFFFF)
