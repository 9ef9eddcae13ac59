"""Claim: properties files are read as Java reads them; what Java could read in two ways is refused with its line."""

from __future__ import annotations

import pytest

from popstream.java_properties import PropertyError, parse_properties


def pairs(content: bytes) -> list[tuple[str, str]]:
    return [(entry.name, entry.value) for entry in parse_properties(content)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a=b", [("a", "b")]),
        (b"  a : b  ", [("a", "b  ")]),
        (b"a b=c", [("a", "b=c")]),
        (b"a", [("a", "")]),
        (b"a=\r\nb=c\rd=e", [("a", ""), ("b", "c"), ("d", "e")]),
        (b"# x\n! y\n\n \t\n a=b # c", [("a", "b # c")]),
        (b"a=b\\\n  c\\\n\td", [("a", "bcd")]),
        (b"a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")]),
        (b"# x \\\na=b", [("a", "b")]),
        (b"a\\=b\\ c=d", [("a=b c", "d")]),
        (b'a=\\t\\n\\r\\f\\q\\"', [("a", '\t\n\r\fq"')]),
        (b"a=\\u00e9\\ud83d\\ude00", [("a", "é😀")]),
        (b"a=b\\", [("a", "b")]),
    ],
)
def test_entries_are_those_of_java(content: bytes, expected: list[tuple[str, str]]) -> None:
    assert pairs(content) == expected


def test_an_entry_has_the_number_of_its_first_line() -> None:
    assert [entry.line for entry in parse_properties(b"# x\na=b\\\n c\nd=e")] == [2, 4]


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [("a=b\nc=é".encode(), 2, "only ASCII"), (b"a=b\n\nc=\\u12g4", 3, "four hexadecimal"), (b"\\u=1", 1, "four hex")],
)
def test_what_java_cannot_read_or_not_always_alike(content: bytes, line: int, what: str) -> None:
    with pytest.raises(PropertyError, match=what) as raised:
        pairs(content)
    assert raised.value.line == line
