"""Which messages are sent again after an attempt, and in which shipments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from popstream.errors import OutcomeUnknown
from popstream.send.outgoing import is_in_order
from popstream.send.shipment import SendAgain, not_written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popstream.send.outgoing import Order, Outgoing
    from popstream.send.shipment import SendOutcome, Shipment

__all__ = ["settle_load"]

OVERTAKEN = "Kafka refused the batch of the message, and a later message of its key is written"


def settle_load(load: Sequence[Shipment]) -> tuple[list[tuple[Outgoing, SendOutcome]], list[Shipment]]:
    """Return the final outcomes of a load's messages, and the shipments to send again before all others, in order."""
    settled: list[tuple[Outgoing, SendOutcome]] = []
    again: list[Shipment] = []
    overtaken: set[bytes | Order] = set()
    for shipment in reversed(load):
        left: list[Outgoing] = []
        outcomes = shipment.outcomes or ()
        for outgoing, outcome in zip(reversed(shipment.messages), reversed(outcomes), strict=True):
            outgoing.last_error = outcome.error or outgoing.last_error
            if outcome.retry is SendAgain.NO:
                settled.append((outgoing, outcome))
                if outcome.result is not None or isinstance(outcome.error, OutcomeUnknown):
                    overtaken.add(outgoing.message.order_key)
            elif is_in_order(outgoing.message.order_key, overtaken):
                settled.append((outgoing, not_written(outgoing, OVERTAKEN)))
            else:
                left.append(outgoing)
        left.reverse()
        if left and all(outcome.retry is not SendAgain.ALONE for outcome in outcomes):
            again.append(msgspec.structs.replace(shipment, messages=left, outcomes=None))
        else:
            # One by one, so that a message which Kafka refuses fails no other.
            again += (
                msgspec.structs.replace(shipment, messages=[one], is_unit=False, is_by_itself=True, outcomes=None)
                for one in reversed(left)
            )
    return settled[::-1], again[::-1]
