"""Claim: a text is found in whatever way programs write it, in texts and in bytes, and nothing else is."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from connectors.delta.escaped_text import pattern_of

TEXT = 'José "Pepe" O\'Neill\\Smith/\U0001f600\tŁódź <pepe@example.com>'


def is_found(text: str, value: str | bytes) -> bool:
    kind = pa.binary() if isinstance(value, bytes) else pa.string()
    (found,) = pc.match_substring_regex(pa.array([value], kind), pattern_of(text)).to_pylist()
    return bool(found)


WAYS = {
    "as it is": TEXT,
    "json.dumps": json.dumps(TEXT),
    "upper case": "".join(
        character
        if character.isascii()
        else "".join(f"\\u{unit:04X}" for unit in memoryview(character.encode("utf-16-le")).cast("H"))
        for character in TEXT
    ),
    "JSON.stringify": json.dumps(TEXT, ensure_ascii=False),
    "with escaped slashes": json.dumps(TEXT).replace("/", "\\/"),
    "for HTML": json.dumps(TEXT).replace("<", "\\u003c").replace(">", "\\u003E").replace("'", "\\u0027"),
    "JSON in JSON": json.dumps(json.dumps({"name": TEXT})),
    "every character": "".join(
        f"\\u{unit:04x}" for character in TEXT for unit in memoryview(character.encode("utf-16-le")).cast("H")
    ),
    "repr": repr(TEXT),
    "ascii": ascii(TEXT),
    "repr of bytes": repr(TEXT.encode()),
    "JSON of a repr of bytes of JSON": json.dumps(repr(json.dumps(TEXT).encode())),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_is_found_however_it_is_written(way: str) -> None:
    assert is_found(TEXT, f"some {WAYS[way]} more")
    assert is_found(TEXT, b"\xff\xfe" + WAYS[way].encode() + b"\xff")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("José", "Jose"),
        ("José", "JOSÉ"),
        ("José", "Jos\\u00e8"),
        ("José", "Josu00e9"),
        ("alice.b", "alice-b"),
        ("a+b", "aab"),
        ("n", "\\\\"),
        ("U", "\\u"),
        ("\U0001f600", "\\ud83d\\ude01"),
    ],
)
def test_another_text_is_not_found(text: str, value: str) -> None:
    assert not is_found(text, value)
    assert not is_found(text, value.encode())
