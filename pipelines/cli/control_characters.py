"""Texts of others on a terminal, which would obey some of their characters."""

import re
from typing import Final

__all__ = ["escape_controls"]

_OBEYED: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that change the direction of writing, and what UTF-8 cannot encode."""


def escape_controls(text: str, *, kept: str = "") -> str:
    r"""Return a text with escapes for the characters that a terminal would obey, but for those that are `kept`.

    >>> escape_controls("a\x1b[2J\u202eb\nc"), escape_controls("a\tb\nc", kept="\n\t")
    ('a\\x1b[2J\\u202eb\\nc', 'a\tb\nc')
    """
    return _OBEYED.sub(lambda found: found[0] if found[0] in kept else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
