"""Receipt handles: a pop returns one, and an ack or a change refers to its delivery by it.

Text, opaque to users: `1.<payload>` or `1.<payload>.<key id>.<signature>`, payload and signature in unpadded
base64url. The payload, big-endian:

    0        8        16       20   22       26       34       38       42
    | start  | pop    | invis- | re-| queue  | epoch  | revi-  | lane   | broker name
    | offset | time   | ible   | vi-| id     |        | sion   | check  | (UTF-8, to the end)
    | u64    | ms u64 | ms u32 | ve | u32    | u64    | u32    | u32    |

The first fields and the broker name are RocketMQ's (ExtraInfoUtil.buildExtraInfo); epoch and revision fence it
(docs/differences.md, "Fenced handles"); the lane check is the CRC-32 of group, topic and queue, so that a handle of
another lane is recognised. The signature is added outside the kernel and never stored.
"""

import binascii
import hmac
import struct
import zlib
from functools import lru_cache
from typing import Final

import msgspec

from popstream.wire.signing import KeyRing, from_text, to_text

__all__ = [
    "BROKER_NAME",
    "REVIVE_QUEUE_ID_ORDERLY",
    "Handle",
    "Signer",
    "decode_handle",
    "encode_handle",
    "lane_check",
    "read_handle",
]

BROKER_NAME: Final = "popstream"
"""A constant: handles are part of answers, which depend on the log alone."""

REVIVE_QUEUE_ID_ORDERLY: Final = 999
"""RocketMQ's KeyBuilder.POP_ORDER_REVIVE_QUEUE: marks the handle of an orderly pop."""

_LAYOUT: Final = struct.Struct(">QQIHIQII")
_VERSION: Final = "1"
_SIGNATURE_BYTES: Final = 16


class Handle(msgspec.Struct, frozen=True, gc=False):
    """The handle of a pop, which all its messages share; a message is named by the handle and its offset."""

    start_offset: int
    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int
    queue_id: int
    epoch: int
    revision: int
    lane_check: int
    broker_name: str = BROKER_NAME

    @property
    def next_visible_time_ms(self) -> int:
        """When the lease of this handle ends, unless it is changed."""
        return self.pop_time_ms + self.invisible_time_ms


def lane_check(topic: str, queue_id: int, group: str) -> int:
    """Return the CRC-32 that binds a handle to its lane."""
    return zlib.crc32(f"{topic}\0{queue_id}\0{group}".encode())


def encode_handle(handle: Handle) -> str:
    """Return the unsigned text of `handle`.

    >>> h = Handle(7, 1000, 500, 0, 3, 9, 1, lane_check("orders", 3, "billing"))
    >>> decode_handle(encode_handle(h)) == h
    True
    """
    payload = _LAYOUT.pack(
        handle.start_offset,
        handle.pop_time_ms,
        handle.invisible_time_ms,
        handle.revive_queue_id,
        handle.queue_id,
        handle.epoch,
        handle.revision,
        handle.lane_check,
    )
    return f"{_VERSION}.{to_text(payload + handle.broker_name.encode())}"


def decode_handle(text: str) -> Handle | None:
    """Return the handle in `text`, whose signature is not checked; None if it is malformed.

    >>> decode_handle("1.AAAA") is None, decode_handle("") is None
    (True, True)
    """
    parts = text.split(".", 2)
    if len(parts) < 2 or parts[0] != _VERSION:
        return None
    try:
        payload = from_text(parts[1])
        start, pop_time, invisible_time, revive, queue_id, epoch, revision, check = _LAYOUT.unpack_from(payload)
        name = payload[_LAYOUT.size :].decode()
        return Handle(start, pop_time, invisible_time, revive, queue_id, epoch, revision, check, name)
    except (binascii.Error, struct.error, ValueError):
        return None


read_handle = lru_cache(maxsize=65_536)(decode_handle)
"""`decode_handle` with a cache: the acks of one pop repeat its handle."""


class Signer:
    """Adds and checks the HMAC-SHA256 of handles.

    Args:
        ring: The keys of handles.

    >>> signer = Signer(KeyRing.of({"a": b"secret"}, active="a"))
    >>> signer.verify(signer.sign("1.AAAA"), 0), signer.verify("1.AAAA.a.forged", 0), signer.verify("1.AAAA", 0)
    ('1.AAAA', None, None)
    >>> signer.verify("1.AAAA.a.\u00e9", 0) is None
    True
    """

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    @classmethod
    def of(cls, ring: KeyRing | None) -> "Signer | None":
        """Return the signer of these keys, if there are any."""
        return None if ring is None else cls(ring)

    def is_needed(self, at_ms: int) -> bool:
        """Return whether a handle in a record of this time needs a signature."""
        return at_ms >= self._ring.since_ms

    def sign(self, unsigned: str) -> str:
        """Append key id and signature to `unsigned`. The handle's lane check binds it to its lane."""
        key_id = self._ring.active
        return f"{unsigned}.{key_id}.{self._signature(key_id, unsigned)}"

    def verify(self, signed: str, at_ms: int) -> str | None:
        """Return the unsigned text; None if the signature is missing, or not of a key of ours that was valid then."""
        parts = signed.split(".")
        if len(parts) != 4 or not self._ring.is_valid(parts[2], at_ms):
            return None
        unsigned = f"{parts[0]}.{parts[1]}"
        wanted = self._signature(parts[2], unsigned).encode()  # as bytes: a forged one may be non-ASCII
        return unsigned if hmac.compare_digest(wanted, parts[3].encode()) else None

    def _signature(self, key_id: str, unsigned: str) -> str:
        return to_text(self._ring.mac(key_id, unsigned.encode())[:_SIGNATURE_BYTES])
