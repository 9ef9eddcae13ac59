"""The header `popstream-redriven` of a message that was a dead letter: which one, and how many times it was one.

Its value is JSON: `{"letter": "0f3a...", "count": 2}`. The dead letter of such a message has the header as well: what
fails again and again can be told from what failed once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from popstream.wire.decode_errors import DECODE_ERRORS
from popstream.wire.headers import REDRIVEN_HEADER, header_value

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Redriven"]


class Redriven(msgspec.Struct, frozen=True):
    """The value of the header.

    Attributes:
        letter: Id of the dead letter.
        count: Number of redrives of the message, this one included.
    """

    letter: str
    count: int

    def header(self) -> tuple[str, bytes]:
        """Return the header of a record.

        >>> Redriven("0f3a", 2).header()
        ('popstream-redriven', b'{"letter":"0f3a","count":2}')
        """
        return REDRIVEN_HEADER, msgspec.json.encode(self)

    @classmethod
    def count_of(cls, headers: Iterable[tuple[str, bytes | None]]) -> int:
        """Return how many times a message was redriven; 0: never, or the header is malformed.

        >>> Redriven.count_of([Redriven("0f3a", 2).header()]), Redriven.count_of([("popstream-redriven", b"?")])
        (2, 0)
        """
        try:
            return msgspec.json.decode(header_value(headers, REDRIVEN_HEADER), type=cls).count
        except DECODE_ERRORS:
            return 0
