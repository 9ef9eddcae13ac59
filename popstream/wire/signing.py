"""Keys, and what is signed with them: receipt handles (`handle.py`) by the job, operations by those who administer it.

The value of a signed operation is its JSON with one more field, the last one:

    {"type":"policy", ... ,"signature":"<key id>.<signed at, ms>.<HMAC-SHA256>"}

The HMAC, in unpadded base64url, is over `popstream-operation`, the name of the ops topic and the time, each followed by
a zero byte, and the value without the signature, byte for byte. So it covers every field, and belongs to one job.
"""

import binascii
import hmac
import re
from collections.abc import Mapping

import msgspec

from popstream.wire.base_errors import Invalid

__all__ = [
    "KEY_ID",
    "SECRET_BYTES_MIN",
    "SIGNED_AFTER_MS_MAX",
    "SIGNED_BEFORE_MS_MAX",
    "AdminKey",
    "KeyRing",
    "OperationVerifier",
    "SigningKey",
    "from_text",
    "sign_operation",
    "to_text",
]

KEY_ID = r"[A-Za-z0-9_-]{1,64}"
"""Pattern of a key id, which is part of what is signed: without dots, and the same in JSON."""

SECRET_BYTES_MIN = 16
"""Least length of the secret of an admin key."""

SIGNED_BEFORE_MS_MAX = 8 * 60_000
"""How long after it was signed an operation may reach Kafka. A client sends the same bytes again for so long."""
SIGNED_AFTER_MS_MAX = 60_000
"""How far the clock of a client may be ahead of the broker's.

Both together are the 9 minutes for which an op_id is certainly known: a copy of a record is a repetition, which changes
nothing, or comes too late."""

_CONTEXT = b"popstream-operation"
_FIELD = b',"signature":"'
_END = b'"}'
_SIGNATURE = re.compile(rf"({KEY_ID})\.([0-9]{{1,15}})\.([A-Za-z0-9_-]{{43}})", re.ASCII)


class SigningKey(msgspec.Struct, frozen=True):
    """A secret, and the time from which on it signs nothing any more, in ms since 1970; None: it is in use."""

    secret: bytes
    until_ms: int | None = None

    def __repr__(self) -> str:
        return f"SigningKey(..., {self.until_ms})"


class KeyRing(msgspec.Struct, frozen=True):
    """The keys of one purpose. Several are valid at once, so that they can be rotated.

    What is signed is judged by the time of its record, so that a replay of the log decides the same after a rotation.

    Args:
        keys: By id.
        active: Id of the key that signs.
        since_ms: Records of before then need no signature, as there were no keys yet; 0: all need one.
    """

    keys: dict[str, SigningKey]
    active: str
    since_ms: int = 0

    @classmethod
    def of(cls, secrets: Mapping[str, bytes], active: str) -> "KeyRing":
        """Return a ring of keys that are all in use.

        >>> ring = KeyRing.of({"a": b"secret"}, "a")
        >>> ring.is_valid("a", 0), ring.is_valid("b", 0), len(ring.mac("a", b"text"))
        (True, False, 32)
        """
        return cls({key_id: SigningKey(secret) for key_id, secret in secrets.items()}, active)

    def mac(self, key_id: str, message: bytes) -> bytes:
        """Return the HMAC-SHA256 of a message."""
        return hmac.digest(self.keys[key_id].secret, message, "sha256")

    def is_valid(self, key_id: str, at_ms: int) -> bool:
        """Return whether there is such a key, and it was in use at a time."""
        key = self.keys.get(key_id)
        return key is not None and (key.until_ms is None or at_ms < key.until_ms)


class AdminKey(msgspec.Struct, frozen=True):
    """The key with which a client signs operations that not everybody may send; `admin_keys` of the job has it, too.

    Args:
        key_id: Its id, which the audit shows.
        secret: Its secret.

    Raises:
        Invalid: The id has other characters than ASCII letters, digits, `-` and `_`, or the secret is too short.
    """

    key_id: str
    secret: str

    def __post_init__(self) -> None:
        """Check both."""
        if re.fullmatch(KEY_ID, self.key_id, re.ASCII) is None:
            message = "the id of an admin key has 1 to 64 ASCII letters, digits, - and _"
            raise Invalid(message)
        if len(self.secret.encode()) < SECRET_BYTES_MIN:
            message = f"the secret of the admin key {self.key_id} has less than {SECRET_BYTES_MIN} bytes"
            raise Invalid(message, subject=self.key_id)

    def __repr__(self) -> str:
        return f"AdminKey({self.key_id!r}, ...)"


def sign_operation(value: bytes, key: AdminKey, *, ops_topic: str, at_ms: int) -> bytes:
    """Return the JSON of an operation with its signature.

    Args:
        value: The operation without one, as `encode_command` makes it.
        key: The key.
        ops_topic: Name of the ops topic that it is sent to.
        at_ms: Now, ms since 1970. The job takes it for 8 minutes from then on.

    >>> sign_operation(b'{"type":"tick"}', AdminKey("a", 16 * "x"), ops_topic="popstream.ops", at_ms=7)[:32]
    b'{"type":"tick","signature":"a.7.'
    """
    mac = hmac.digest(key.secret.encode(), _message(value, ops_topic, str(at_ms)), "sha256")
    return value[:-1] + _FIELD + f"{key.key_id}.{at_ms}.{to_text(mac)}".encode() + _END


class OperationVerifier:
    """Checks the signatures of operations for one job.

    Args:
        ring: Its admin keys.
        ops_topic: Name of its ops topic.
    """

    def __init__(self, ring: KeyRing, ops_topic: str) -> None:
        self._ring = ring
        self._ops_topic = ops_topic

    @classmethod
    def of(cls, ring: KeyRing | None, ops_topic: str) -> "OperationVerifier | None":
        """Return the verifier of these keys, if there are any."""
        return None if ring is None else cls(ring, ops_topic)

    def is_needed(self, at_ms: int) -> bool:
        """Return whether a record of this time needs a signature."""
        return at_ms >= self._ring.since_ms

    def key_of(self, signature: str, value: bytes, at_ms: int) -> str:
        """Return the id of the key that signed a record.

        Args:
            signature: The field of the operation.
            value: The whole value of the record.
            at_ms: Kafka's timestamp of the record.

        Raises:
            ValueError: The signature is not valid for this record at this time; the message says why.
        """
        tail = _FIELD + signature.encode() + _END
        parts = _SIGNATURE.fullmatch(signature)
        if parts is None or not value.endswith(tail):
            message = "the signature is malformed: it is KEY.TIME.HMAC, and the last field"
            raise ValueError(message)
        key_id, signed_at, text = parts.groups()
        if not self._ring.is_valid(key_id, at_ms):
            message = f"there is no admin key {key_id}, or not any more"
            raise ValueError(message)
        message_bytes = _message(value[: -len(tail)] + b"}", self._ops_topic, signed_at)
        if not hmac.compare_digest(to_text(self._ring.mac(key_id, message_bytes)).encode(), text.encode()):
            message = f"the record is not what was signed with the admin key {key_id} for {self._ops_topic}"
            raise ValueError(message)
        late_ms = at_ms - int(signed_at)
        if not -SIGNED_AFTER_MS_MAX <= late_ms <= SIGNED_BEFORE_MS_MAX:
            when = f"{late_ms / 1000:.0f} s before" if late_ms > 0 else f"{-late_ms / 1000:.0f} s after"
            message = f"it was signed {when} Kafka got it: a copy, or a clock is wrong"
            raise ValueError(message)
        return key_id


def _message(value: bytes, ops_topic: str, signed_at: str) -> bytes:
    return b"\0".join((_CONTEXT, ops_topic.encode(), signed_at.encode(), value))


_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_+/", b"+/--")


def to_text(data: bytes) -> str:
    """Return unpadded base64url."""
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL).rstrip(b"=").decode()


def from_text(text: str) -> bytes:
    """Return the bytes of unpadded base64url. Raises ValueError (binascii.Error) for anything else."""
    # The translation maps "+" and "/" to "-", which the decoder refuses: they are not in our alphabet.
    return binascii.a2b_base64(text.encode().translate(_FROM_URL) + b"==="[(len(text) + 3) % 4 :], strict_mode=True)
