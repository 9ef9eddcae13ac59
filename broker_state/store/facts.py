"""Facts about offsets, which pages keep in runs; neighbouring offsets with the same facts share one object."""

import hashlib
from functools import lru_cache

import msgspec

__all__ = ["Delivery", "DeliveryState", "Member", "UnitFacts", "client_hash"]


class DeliveryState:
    """State of a message that was handed out and is not acked."""

    LEASED = 0
    """Invisible until the deadline."""
    BACKING_OFF = 1
    """The lease ended; the message is available again at the deadline."""
    AVAILABLE = 2
    """The next pop may take the message."""


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """The last delivery of a message; messages for which all of it is equal share the object."""

    epoch: int
    """Number of the pop within its lane, from 1; its upper half is the generation (store/generation.py)."""
    revision: int
    """Changes of this delivery so far."""
    pop_time_ms: int
    """Time of the pop, or of the last change."""
    deadline_ms: int
    """End of the lease, or of the back-off; 0 when available."""
    invisible_time_ms: int
    """Length of the lease from `pop_time_ms`."""
    client: int
    """`client_hash` of the client that popped; 0 when it gave no id."""
    attempt: int
    """Number of the delivery, from 1."""
    state: int
    """A `DeliveryState`."""
    suspended: bool
    """The next delivery does not count as a further attempt."""

    def changed(self, *, now_ms: int, invisible_time_ms: int, suspend: bool) -> "Delivery":
        """Return the delivery after a change_invisible."""
        return Delivery(
            epoch=self.epoch,
            revision=self.revision + 1,
            pop_time_ms=now_ms,
            deadline_ms=now_ms + invisible_time_ms,
            invisible_time_ms=invisible_time_ms,
            client=self.client,
            attempt=self.attempt,
            state=DeliveryState.LEASED,
            suspended=suspend,
        )

    def offered_again(self, *, suspended: bool, back_off_until_ms: int = 0) -> "Delivery":
        """Return the delivery after its lease: available now, or (unless 0) at `back_off_until_ms`."""
        return Delivery(
            epoch=self.epoch,
            revision=self.revision,
            pop_time_ms=self.pop_time_ms,
            deadline_ms=back_off_until_ms,
            invisible_time_ms=self.invisible_time_ms,
            client=self.client,
            attempt=self.attempt,
            state=DeliveryState.BACKING_OFF if back_off_until_ms else DeliveryState.AVAILABLE,
            suspended=suspended,
        )


@lru_cache(maxsize=4096)
def client_hash(client_id: str | None) -> int:
    """Return the 64 bits that stand for a client id in the pages; 0 stands for none, and for no client id."""
    if not client_id:
        return 0
    digest = hashlib.blake2b(client_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


class UnitFacts(msgspec.Struct, frozen=True, gc=False):
    """Facts about a unit, as its dispatch gave them."""

    tag: int
    """Hash of its tag; 0: none."""
    count: int
    """Messages in it."""
    deliver_at_ms: int = 0
    """No pop is given it before this time; 0: it is given as soon as it is written."""


class Member(msgspec.Struct, frozen=True, gc=False):
    """What is known of an offset of the batch of an orderly lane."""

    is_member: bool
    """False: the latest pop did not return this offset; only its `count` is kept."""
    acked: bool = False
    """Acked, rejected, dead-lettered or expired from the log."""
    next_visible_ms: int = -1
    """When it is visible again, ms since 1970; -1: at the deadline of the pop."""
    count: int = 0
    """Deliveries before this one, as RocketMQ counts them."""
    suspended: bool = False
    """The next delivery has the same count as this one."""
    ended: bool = False
    """The lease has ended and its end was audited; a change of the visible time begins another lease."""
