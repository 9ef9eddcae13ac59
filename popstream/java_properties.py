"""The format of Java's properties files, in which Kafka's tools are configured."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Property", "PropertyError", "parse_properties"]

_BLANKS = " \t\f"
_ENTRY = re.compile(rf"((?:\\.|[^\\=:{_BLANKS}])*)[{_BLANKS}]*[=:]?[{_BLANKS}]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One entry, and the number of the line where it begins."""

    line: int
    name: str
    value: str


class PropertyError(ValueError):
    """A line that Java could not read, or not always in the same way."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def parse_properties(content: bytes) -> Iterator[Property]:
    r"""Yield the entries, by the rules of `java.util.Properties.load`.

    >>> [*parse_properties(b"# comment\na = b\\\n   c\n\nd:\\u00e9\\=")]
    [Property(line=2, name='a', value='bc'), Property(line=5, name='d', value='é=')]

    Raises:
        PropertyError: The content is not ASCII, which Kafka's tools and its configuration providers decode differently;
            or `\u` is not followed by four hexadecimal digits.
    """
    lines = enumerate(re.split(rb"\r\n|\r|\n", content), 1)
    for number, line in lines:
        entry = line.lstrip(_BLANKS.encode())
        if not entry or entry.startswith((b"#", b"!")):
            continue
        while _is_continued(entry):
            _, following = next(lines, (0, b""))
            entry = entry[:-1] + following.lstrip(_BLANKS.encode())
        if not entry.isascii():
            raise PropertyError(number, r"only ASCII characters are allowed: write others as \uXXXX")
        found = _ENTRY.fullmatch(entry.decode("ascii"))
        assert found is not None  # each part may be empty
        yield Property(number, _unescaped(found[1], number), _unescaped(found[2], number))


def _is_continued(line: bytes) -> bool:
    """Return whether the last backslash is not itself escaped."""
    return (len(line) - len(line.rstrip(b"\\"))) % 2 == 1


def _unescaped(text: str, line: int) -> str:
    def character(found: re.Match[str]) -> str:
        code = found[1]
        if code == "u":
            raise PropertyError(line, r"\u must be followed by four hexadecimal digits")
        return chr(int(code[1:], 16)) if len(code) > 1 else _CHARACTERS.get(code, code)

    # Java writes a character beyond the first 65,536 as two.
    return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
