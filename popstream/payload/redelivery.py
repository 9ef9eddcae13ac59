"""The header `popstream-resent` of a message that a consumer sends again, out of a unit.

Its value is JSON:

    {"group": "billing", "attempts": 2, "not_before_ms": 1790000000000, "cause": "TimeoutError: the bank sleeps"}
    {"group": "billing", "attempts": 2, "reject": "no such customer"}

The message is for one group: consumers of other groups ack it without handing it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from popstream.wire.decode_errors import DECODE_ERRORS
from popstream.wire.headers import REDELIVERY_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Redelivery"]


class Redelivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of the header.

    Attributes:
        group: The group that is to receive the message.
        attempts: Number of attempts that the message has had.
        not_before_ms: Before this time of the broker's clock the message is not handed out, but leased on; 0: at once.
        reject: The message is rejected with this cause; None: it is handed out.
        cause: What its handler has raised, for who looks at the record or its dead letter; None: no handler failed.
    """

    group: str
    attempts: int = 0
    not_before_ms: int = 0
    reject: str | None = None
    cause: str | None = None

    def header(self) -> tuple[str, bytes]:
        """Return the header of a record.

        >>> Redelivery("billing", 2).header()
        ('popstream-resent', b'{"group":"billing","attempts":2}')
        """
        return REDELIVERY_HEADER, msgspec.json.encode(self)

    @classmethod
    def parse(cls, headers: Iterable[tuple[str, bytes | None]]) -> Redelivery | None:
        """Decode the headers of a record; None: it is not a redelivery, or its header is malformed.

        >>> Redelivery.parse([Redelivery("billing", 2).header()]), Redelivery.parse([("popstream-resent", b"?")])
        (Redelivery(group='billing', attempts=2, not_before_ms=0, reject=None, cause=None), None)
        """
        value = dict(headers).get(REDELIVERY_HEADER)
        try:
            return None if value is None else msgspec.json.decode(value, type=cls)
        except DECODE_ERRORS:
            return None
