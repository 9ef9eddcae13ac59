"""The messages of a record that was read without a lease."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from popstream.outcome import Record
from popstream.payload.inner_batch import unwrap_payload
from popstream.payload.message_id import message_id_of
from popstream.wire.base_errors import Corrupt
from popstream.wire.deliver_at import deliver_at_ms_of
from popstream.wire.headers import without_own_headers
from popstream.wire.tag import tag_text

if TYPE_CHECKING:
    from popstream.payload.inner_batch import TypeOf
    from popstream.payload.payloads import Payload

__all__ = ["records_of"]


def records_of(topic: str, queue_id: int, queue_offset: int, payload: Payload, type_of: TypeOf) -> list[Record]:
    """Return the messages that a record carries, in order; of an unreadable record the record itself.

    `type_of` is as in `unwrap_payload`.
    """
    place = partial(Record, topic=topic, queue_id=queue_id, queue_offset=queue_offset)
    try:
        unwrapped = unwrap_payload(topic, payload, type_of)
    except Corrupt:
        unwrapped = None
    if unwrapped is None:
        return [
            place(
                key=payload.key,
                value=payload.value,
                headers=without_own_headers(payload.headers),
                timestamp_ms=payload.timestamp_ms,
                tag=tag_text(payload.headers),
                deliver_at_ms=deliver_at_ms_of(payload.headers),
                message_id=message_id_of(payload.headers),
            )
        ]
    return [place(**msgspec.structs.asdict(one)) for one in unwrapped]
