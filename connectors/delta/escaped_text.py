r"""The ways in which a program may have written a text into JSON, or into a message of Python.

```
é   as it is    \u00e9    \u00E9    \xe9    \xc3\xa9
```

Most programs escape every character that is not ASCII (`json.dumps`), some also `/`, `'`, `<` and others. What was
escaped twice, as JSON within JSON, has more backslashes.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["pattern_of"]

_BACKSLASHES: Final = r"\\+"
_SHORT: Final = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def pattern_of(text: str) -> str:
    r"""Return a regular expression of RE2 for a text, however it is escaped.

    >>> bool(re.search(pattern_of("José"), r'{"name": "Jos\u00E9"}'))
    True
    """
    return "".join(map(_character, text))


def _character(character: str) -> str:
    code = ord(character)
    ways = [re.escape(character), _escaped("u", 4, *_utf16_units(character))]
    if character == "\\":
        ways[0] = _BACKSLASHES
    elif character in _SHORT:
        ways.append(_BACKSLASHES + _SHORT[character])
    elif code < 0x80 and not character.isalnum():
        ways[0] = r"\\*" + ways[0]
    ways.append(_escaped("x", 2, *character.encode()))
    if 0x80 <= code < 0x100:
        ways.append(_escaped("x", 2, code))
    if code > 0xFFFF:
        ways.append(_escaped("U", 8, code))
    return f"(?:{'|'.join(ways)})"


def _escaped(letter: str, digits: int, *numbers: int) -> str:
    return "".join(f"{_BACKSLASHES}{letter}(?i:{number:0{digits}x})" for number in numbers)


def _utf16_units(character: str) -> list[int]:
    encoded = character.encode("utf-16-be")
    return [int.from_bytes(encoded[at : at + 2]) for at in range(0, len(encoded), 2)]
