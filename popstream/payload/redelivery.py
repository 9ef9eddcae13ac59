"""What a consumer says of a message that it sends again, as a message of its own: header `popstream-resent`, JSON.

    {"group": "billing", "attempts": 2, "not_before_ms": 1790000000000, "reject": "no such customer"}

It is meant for one group: consumers of others ack it unseen. `attempts` are those that it has had; before
`not_before_ms`, by the broker's clock, it is leased on without being handed out; with `reject` it goes to the dead
letters as soon as it comes (seed 002, question 3: what failed inside a batch is sent to the broker again).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from popstream.wire.decoding import DECODE_ERRORS
from popstream.wire.headers import REDELIVERY_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Redelivery"]


class Redelivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header's value."""

    group: str
    attempts: int = 0
    not_before_ms: int = 0
    reject: str | None = None

    def header(self) -> tuple[str, bytes]:
        """As a header of a record.

        >>> Redelivery("billing", 2).header()
        ('popstream-resent', b'{"group":"billing","attempts":2}')
        """
        return REDELIVERY_HEADER, msgspec.json.encode(self)

    @classmethod
    def parse(cls, headers: Iterable[tuple[str, bytes | None]]) -> Redelivery | None:
        """What the headers of a record say; None: it was not sent again, or nobody can read why.

        >>> Redelivery.parse([Redelivery("billing", 2).header()]), Redelivery.parse([("popstream-resent", b"?")])
        (Redelivery(group='billing', attempts=2, not_before_ms=0, reject=None), None)
        """
        value = dict(headers).get(REDELIVERY_HEADER)
        try:
            return None if value is None else msgspec.json.decode(value, type=cls)
        except DECODE_ERRORS:
            return None
