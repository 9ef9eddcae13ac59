"""Claim: a signature holds for one record, one job and nine minutes, and a key is nowhere but where it was written.

Method: signed operations, changed byte by byte, and judged at other times, with other keys and for other topics.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from popstream import AdminKey, ClientSettings
from popstream.settings import read_admin_key
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Command, Policy, encode_command
from popstream.wire.signing import (
    SIGNED_AFTER_MS_MAX,
    SIGNED_BEFORE_MS_MAX,
    KeyRing,
    OperationVerifier,
    SigningKey,
    sign_operation,
)

OPS = "shop.ops"
SECRET = "a secret of 24 characters"  # noqa: S105 - of this test
KEY = AdminKey("2030", SECRET)
NOON_MS = 1_893_499_200_000
POLICY = Policy(v=1, topic="orders", queue_id=0, group="billing", max_attempts=5, op_id="op-1", reply_to=3)
SIGNED = sign_operation(encode_command(POLICY), KEY, ops_topic=OPS, at_ms=NOON_MS)


def ring(**keys: SigningKey) -> KeyRing:
    return KeyRing(keys or {"2030": SigningKey(SECRET.encode())}, "2030")


def key_of(value: bytes = SIGNED, *, keys: KeyRing | None = None, ops_topic: str = OPS, at_ms: int = NOON_MS) -> str:
    signature = getattr(msgspec.json.decode(value, type=Command), "signature", None)
    return OperationVerifier(keys or ring(), ops_topic).key_of(signature or "", value, at_ms)


def why_not(**changed: object) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        key_of(**changed)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_signed_operation_is_the_same_operation_with_one_more_field() -> None:
    found = msgspec.json.decode(SIGNED, type=Policy)
    assert msgspec.structs.replace(found, signature=None) == POLICY
    assert SIGNED.startswith(encode_command(POLICY)[:-1])
    assert key_of() == "2030"


def test_a_signature_holds_for_these_bytes_alone() -> None:
    verifier = OperationVerifier(ring(), OPS)
    signature = str(msgspec.json.decode(SIGNED, type=Policy).signature)
    for place in range(len(SIGNED)):
        for other in (b" ", b"0", b"A"):
            value = SIGNED[:place] + other + SIGNED[place + 1 :]
            if value != SIGNED:
                with pytest.raises(ValueError, match=r"is not what was signed|is malformed"):
                    verifier.key_of(signature, value, NOON_MS)
    for value in (SIGNED + b" ", b" " + SIGNED, SIGNED[:-1] + b',"reply_to":4}'):
        with pytest.raises(ValueError, match=r"is not what was signed|is malformed"):
            verifier.key_of(signature, value, NOON_MS)


@pytest.mark.parametrize("text", ["", "2030", "2030.1", "2030.1.AAAA", f"2030.x.{'A' * 43}", f"2030.1.{'!' * 43}"])
def test_what_is_no_signature_is_malformed(text: str) -> None:
    value = msgspec.json.encode({**msgspec.json.decode(encode_command(POLICY)), "signature": text})
    with pytest.raises(ValueError, match="is malformed"):
        OperationVerifier(ring(), OPS).key_of(text, value, NOON_MS)


def test_a_signature_is_of_one_job() -> None:
    assert "is not what was signed with the admin key 2030 for other.ops" in why_not(ops_topic="other.ops")
    assert "no admin key 2030" in why_not(keys=KeyRing.of({"2031": SECRET.encode()}, "2031"))
    assert "is not what was signed" in why_not(keys=KeyRing.of({"2030": SECRET.encode() + b"!"}, "2030"))


def test_two_keys_hold_at_once_and_the_former_one_until_its_end() -> None:
    both = ring(**{"2030": SigningKey(SECRET.encode(), NOON_MS + 5), "2031": SigningKey(b"another secret, new")})
    new = sign_operation(encode_command(POLICY), AdminKey("2031", "another secret, new"), ops_topic=OPS, at_ms=NOON_MS)
    assert (key_of(keys=both), key_of(new, keys=both)) == ("2030", "2031")
    assert "not any more" in why_not(keys=both, at_ms=NOON_MS + 5)
    assert key_of(new, keys=both, at_ms=NOON_MS + 5) == "2031"


def test_a_copy_comes_too_late_and_a_clock_may_be_a_minute_ahead() -> None:
    for at_ms in (NOON_MS - SIGNED_AFTER_MS_MAX, NOON_MS + SIGNED_BEFORE_MS_MAX):
        assert key_of(at_ms=at_ms) == "2030"
    assert "signed 61 s after" in why_not(at_ms=NOON_MS - SIGNED_AFTER_MS_MAX - 1_000)
    assert "signed 481 s before" in why_not(at_ms=NOON_MS + SIGNED_BEFORE_MS_MAX + 1_000)


def test_a_key_is_read_from_its_file_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "admin.key"
    file.write_text(f"2030:{SECRET}\n")
    assert read_admin_key(file) == KEY
    settings = ClientSettings(bootstrap_servers="b", client_id="c", admin_key=KEY)
    assert SECRET not in f"{KEY} {settings} {ring()} {SigningKey(SECRET.encode())}"
    assert settings.find_admin_key() == KEY
    assert ClientSettings(bootstrap_servers="b", client_id="c", admin_key=str(file)).find_admin_key() == KEY


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "must have one line"),
        (SECRET, "must have one line"),
        (f"2030:{SECRET}\n2031:{SECRET}", "must have one line"),
        (f"20.30:{SECRET}", "ASCII letters, digits"),
        ("2030:short", "less than 16 bytes"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_file_that_has_no_key_is_named_without_its_content(tmp_path: Path, content: str | bytes, said: str) -> None:
    file = tmp_path / "admin.key"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Invalid, match=said) as caught:
        read_admin_key(file)
    assert str(file) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        read_admin_key(tmp_path / "missing")


def test_the_vector_of_the_document_holds() -> None:
    document = (Path(__file__).parents[4] / "docs" / "wire.md").read_text(encoding="utf-8")
    signature = msgspec.json.decode(SIGNED, type=Policy).signature
    assert encode_command(POLICY).decode() in document
    assert f"give `{signature}`" in document
