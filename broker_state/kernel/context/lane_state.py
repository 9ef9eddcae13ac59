"""A lane while records are decided: its record with its position, pages, clients and parked pops."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from broker_state.kernel.context.order_info import OrderInfo
from broker_state.store.facts import Delivery, DeliveryState
from broker_state.store.keys import DEADLINE_BATCH, DEADLINE_PAGE, DEADLINE_PARKED, DEADLINE_PAUSE, LaneTag, lane_prefix
from broker_state.store.marks import Marks
from broker_state.store.pages import PAGE_SHIFT, DeliveryPage
from broker_state.store.position import Position
from broker_state.store.state_records import LanePolicy, LaneRecord, LaneUsage, ParkedPop, Text
from broker_state.store.tree import GrowingTree
from popstream.wire.handle import BROKER_NAME, REVIVE_QUEUE_ID_ORDERLY, Handle, encode_handle, lane_check

if TYPE_CHECKING:
    from broker_state.kernel.context.queue_state import QueueState

__all__ = ["LaneState"]

_U32_MAX: Final = (1 << 32) - 1
_U64_MAX: Final = (1 << 64) - 1
_AVAILABLE: Final = DeliveryState.AVAILABLE
_LEASED: Final = DeliveryState.LEASED
_ERA_TAGS: Final = (
    LaneTag.ACKED,
    LaneTag.DELIVERIES,
    LaneTag.AVAILABLE,
    LaneTag.CLIENT,
    LaneTag.BATCH,
    LaneTag.MEMBERS,
    LaneTag.RETURNING,
    LaneTag.CLIENT_ID,
)


class LaneState:
    """One lane: its record, the position of acked offsets, its pages."""

    __slots__ = (
        "_overlay",
        "_pages_prefix",
        "_parked_prefix",
        "acked",
        "available",
        "check",
        "key",
        "prefix",
        "queue",
        "record",
        "usage_key",
    )

    def __init__(self, queue: "QueueState", record: LaneRecord) -> None:
        overlay = queue.overlay
        self._overlay = overlay
        self.queue = queue
        self.record = record
        self.key = queue.lane_key(record.group)
        self._parked_prefix = lane_prefix(queue.prefix, record.lane_no) + LaneTag.PARKED
        self.usage_key = lane_prefix(queue.prefix, record.lane_no) + LaneTag.USAGE
        self.check = lane_check(queue.topic, queue.queue_id, record.group)
        self._bind()

    def _bind(self) -> None:
        record = self.record
        self.prefix = lane_prefix(self.queue.prefix, self.era_no)
        self._pages_prefix = self.prefix + LaneTag.DELIVERIES
        marks = Marks(self._overlay, self.prefix + LaneTag.ACKED)
        self.acked = Position(marks, record.commit_offset, record.acked_above)
        self.available = GrowingTree(
            self._overlay, self.prefix + LaneTag.AVAILABLE, record.available_depth, record.available_pages
        )

    def encode(self) -> bytes:
        """Return the stored form of the record, with its position and tree as they are now."""
        record = self.record
        record.commit_offset = self.acked.floor
        record.acked_above = self.acked.above
        record.available_depth = self.available.depth
        record.available_pages = self.available.count
        return record.encode()

    def touch(self) -> None:
        """Note that the lane changed."""
        self._overlay.put(self.key, self)

    @property
    def era_no(self) -> int:
        """The number in the keys and deadlines of everything but its parked pops."""
        return self.record.era_no or self.record.lane_no

    @property
    def limits(self) -> LanePolicy:
        """The lane's own policy, else the queue's: of pops and leases, about which consumers declare nothing."""
        return self.record.policy or self.queue.record.policy

    @property
    def policy(self) -> LanePolicy:
        """The lane's own policy, else the queue's, completed by the retries that its consumers declare."""
        own, declared, of_queue = self.record.policy, self.record.declared, self.queue.record.policy
        if own is not None or declared is None:
            return own or of_queue
        return LanePolicy(
            of_queue.max_attempts or declared.max_attempts,
            of_queue.back_off_ms or declared.back_off_ms,
            of_queue.parked_max,
            of_queue.in_flight_max,
        )

    @property
    def usage(self) -> LaneUsage | None:
        """What the quotas of the lane count, if it has or had any."""
        return self._overlay.get(self.usage_key, LaneUsage.decode)

    def gave_out(self, handle: Handle) -> bool:
        """Return whether the handle can belong to a delivery of this lane.

        In an orderly lane epoch 0, which no delivery has, is stale, as is any epoch but that of the current batch.
        """
        return (
            handle.lane_check == self.check
            and handle.queue_id == self.queue.queue_id
            and (handle.epoch > 0 or bool(self.record.orderly))
            and handle.epoch <= self.record.epoch
            and handle.broker_name == BROKER_NAME
        )

    def handle_text(self, delivery: Delivery, start_offset: int) -> str:
        """Return the handle of a delivery, as pops and changes answer it."""
        return encode_handle(
            Handle(
                start_offset,
                delivery.pop_time_ms,
                min(delivery.invisible_time_ms, _U32_MAX),  # changes of an orderly delivery add up without a limit
                self.revive_queue_id,
                self.queue.queue_id,
                delivery.epoch,
                delivery.revision,
                self.check,
            )
        )

    @property
    def has_lost_messages(self) -> bool:
        """Whether the queue lost offsets that the lane may have handed out, and has not counted yet."""
        record, queue = self.record, self.queue.record
        return record.min_seen < queue.min_offset or record.late_skips_seen < queue.late_skips

    @property
    def is_behind(self) -> bool:
        """Whether the queue lost offsets, or has holes, that the lane may not have counted yet."""
        return self.queue.record.holes > 0 or self.has_lost_messages

    @property
    def order_info(self) -> OrderInfo:
        """The batch of an orderly lane; without members before its first pop."""
        info = self._overlay.get(self.prefix + LaneTag.BATCH, self._decode_order_info)
        return OrderInfo(self._overlay, self.prefix) if info is None else info

    def _decode_order_info(self, value: bytes) -> OrderInfo:
        return OrderInfo(self._overlay, self.prefix, value)

    @property
    def revive_queue_id(self) -> int:
        """The value of RocketMQ's field in handles of the lane."""
        return REVIVE_QUEUE_ID_ORDERLY if self.record.orderly else 0

    @property
    def is_poppable(self) -> bool:
        """Whether a pop for any tag would get a message now, once every due deadline has taken effect.

        Not while the lane pauses: a pop for another tag must not overtake a search for tags, nor any pop what has left
        the log.
        """
        record = self.record
        if record.paused_until_ms:
            return False
        if record.orderly:
            return not self.order_info.head.due_ms and self.acked.floor < self.queue.written.floor
        limit = self.limits.in_flight_max
        if limit and record.leased >= limit:
            return False
        return self.available.count > 0 or record.next_offset < self.queue.written.floor

    def pause(self, until_ms: int) -> None:
        """Let the lane go on at `until_ms` with what was too much for one record; with 0 it pauses no more."""
        record = self.record
        if until_ms != record.paused_until_ms:
            self.queue.set_deadline(self.era_no, DEADLINE_PAUSE, 0, record.paused_until_ms, until_ms)
            record.paused_until_ms = until_ms

    @property
    def returning(self) -> list[int]:
        """Hashes of the clients whose leases are still to be released, the first one next. Only while it pauses."""
        bits = self._overlay.bits(self.prefix + LaneTag.RETURNING)
        return [bits >> shift & _U64_MAX for shift in range(0, bits.bit_length(), 64)]

    def set_returning(self, clients: Sequence[int]) -> None:
        """Store the clients whose leases are still to be released."""
        bits = 0
        for client in reversed(clients):
            bits = bits << 64 | client
        self._overlay.set_bits(self.prefix + LaneTag.RETURNING, bits)

    def page(self, page_no: int) -> DeliveryPage | None:
        """Return the deliveries of 64 offsets, if there are any."""
        return self._overlay.get(self._page_key(page_no), DeliveryPage.decode)

    def page_to_fill(self, page_no: int) -> DeliveryPage:
        """Return the page, or a new one."""
        return self.page(page_no) or DeliveryPage(page_no, 0, [], [])

    def settle(self, page: DeliveryPage) -> None:
        """Bring a page's deadline, the tree of available pages and its key in line after a change."""
        self.queue.unsettled.pop(page, None)
        self._set_due(
            page, min([delivery.deadline_ms for _, _, delivery in page.runs if delivery.deadline_ms], default=0)
        )
        if self.record.available and any(run[2].state == _AVAILABLE for run in page.runs):
            self.available.add(page.page_no)
        elif self.available.count:
            self.available.discard(page.page_no)
        if page.runs:
            self._overlay.put(self._page_key(page.page_no), page)
        else:
            for client in page.clients:
                self.discard_client_page(client, page.page_no)
            self._overlay.delete(self._page_key(page.page_no))

    def settle_acked(self, page: DeliveryPage, acked: Delivery) -> None:
        """Do `settle` for a page from which only messages with this delivery were removed.

        To find the page's earliest deadline takes a look at all its runs. That waits for `QueueState.settle`, because
        after an ack it can only have moved later. (After a change of invisible time it cannot wait.)
        """
        if acked.state != _LEASED or not page.runs:
            self.settle(page)
            return
        self._overlay.put(self._page_key(page.page_no), page)
        if acked.deadline_ms == page.due_ms:
            self.queue.unsettled[page] = self

    def settle_fresh(self, page: DeliveryPage, deadline_ms: int) -> None:
        """Do `settle` for a page to which only fresh messages were added, leased or put off until `deadline_ms`."""
        self._set_due(page, min(page.due_ms or deadline_ms, deadline_ms))
        self._overlay.put(self._page_key(page.page_no), page)

    def _set_due(self, page: DeliveryPage, due_ms: int) -> None:
        if due_ms != page.due_ms:
            self.queue.set_deadline(self.era_no, DEADLINE_PAGE, page.page_no, page.due_ms, due_ms)
            page.due_ms = due_ms

    def _page_key(self, page_no: int) -> bytes:
        return self._pages_prefix + page_no.to_bytes(8, "big")

    def add_client_page(self, client: int, page: DeliveryPage, client_id: str | None) -> None:
        """Note that the client may hold leases in the page, for `return_client`; and its id, where that is known."""
        self._note_client_id(client, client_id)
        if client in page.clients:
            return
        if len(page.clients) >= 1 << PAGE_SHIFT:
            holding = {delivery.client for _, _, delivery in page.runs}
            for gone in [known for known in page.clients if known not in holding]:
                page.clients.remove(gone)
                self.discard_client_page(gone, page.page_no)
        page.clients.append(client)
        tree = self.client_pages(client)
        tree.add(page.page_no)
        self._save_client_pages(client, tree)

    def discard_client_page(self, client: int, page_no: int) -> None:
        """Note that the client holds no lease in the page."""
        tree = self.client_pages(client)
        tree.discard(page_no)
        self._save_client_pages(client, tree)

    def client_pages(self, client: int) -> GrowingTree:
        """Return the pages in which the client may hold leases."""
        prefix = self._client_key(client)
        size = self._overlay.bits(prefix)
        return GrowingTree(self._overlay, prefix, (size & 0xFF) or 1, size >> 8)

    def _save_client_pages(self, client: int, tree: GrowingTree) -> None:
        size = tree.count << 8 | tree.depth if tree.count else 0
        self._overlay.set_bits(self._client_key(client), size)
        if not size:
            self._forget_client_id(client)

    def _client_key(self, client: int) -> bytes:
        return self.prefix + LaneTag.CLIENT + client.to_bytes(8, "big")

    def client_id(self, client: int) -> str | None:
        """Return the id of a client that may hold leases, by its hash; None if it gave none, or is not known.

        In a concurrent lane it is known from its pop on, until all its leases were returned or nothing is left of them.
        """
        known = self._overlay.get(self._client_id_key(client), Text.decode) if client else None
        return None if known is None else known.text

    def replace_client(self, before: int, client: int, client_id: str | None) -> None:
        """Note that the batch of an orderly lane is another client's now."""
        if before and before != client:
            self._forget_client_id(before)
        self._note_client_id(client, client_id)

    def _note_client_id(self, client: int, client_id: str | None) -> None:
        if client_id is not None and self.client_id(client) is None:
            self._overlay.put(self._client_id_key(client), Text(client_id))

    def _forget_client_id(self, client: int) -> None:
        if self.client_id(client) is not None:
            self._overlay.delete(self._client_id_key(client))

    def _client_id_key(self, client: int) -> bytes:
        return self.prefix + LaneTag.CLIENT_ID + client.to_bytes(8, "big")

    def parked(self, number: int) -> ParkedPop | None:
        """Return the parked pop with this number, if it still waits."""
        return self._overlay.get(self._parked_key(number), ParkedPop.decode)

    def count_newest_parked(self, client_id: str, *, looked_at: int) -> int:
        """Return how many of the newest `looked_at` parked pops are the client's."""
        count, number = 0, self.record.parked_last
        while number and looked_at:
            pop = self._linked(number)
            count += pop.client_id == client_id
            number, looked_at = pop.before, looked_at - 1
        return count

    def parked_pops(self) -> Iterator[ParkedPop]:
        """Yield the parked pops in the order they came; one that was yielded may be unparked."""
        number = self.record.parked_first
        while number:
            pop = self._linked(number)
            yield pop
            number = pop.after

    def park(self, pop: ParkedPop) -> None:
        """Add a pop, whose number is `parked_next`, behind the parked ones."""
        record = self.record
        if record.parked_last:
            last = self._linked(record.parked_last)
            last.after = pop.number
            self._set_parked(last)
        else:
            record.parked_first = pop.number
        record.parked_last = pop.number
        record.parked_next += 1
        record.parked += 1
        self.queue.record.parked += 1
        self._set_parked(pop)
        self.queue.set_deadline(record.lane_no, DEADLINE_PARKED, pop.number, 0, pop.deadline_ms)

    def unpark(self, pop: ParkedPop) -> None:
        """Take a pop out of the parked ones, wherever it is among them."""
        record = self.record
        if pop.before:
            before = self._linked(pop.before)
            before.after = pop.after
            self._set_parked(before)
        else:
            record.parked_first = pop.after
        if pop.after:
            after = self._linked(pop.after)
            after.before = pop.before
            self._set_parked(after)
        else:
            record.parked_last = pop.before
        record.parked -= 1
        self.queue.record.parked -= 1
        self._overlay.delete(self._parked_key(pop.number))
        self.queue.set_deadline(record.lane_no, DEADLINE_PARKED, pop.number, pop.deadline_ms, 0)

    def _linked(self, number: int) -> ParkedPop:
        pop = self.parked(number)
        assert pop is not None, "the list of parked pops is whole"
        return pop

    def _set_parked(self, pop: ParkedPop) -> None:
        self._overlay.put(self._parked_key(pop.number), pop)

    def _parked_key(self, number: int) -> bytes:
        return self._parked_prefix + number.to_bytes(8, "big")

    def begin_era(self) -> None:
        """Forget positions and deliveries, however many there are; the caller sets the record. Parked pops stay."""
        self.forget_era()
        record = self.record
        record.era_no = self.queue.name_number(record.group)
        record.acked_above = record.available_pages = record.leased = record.available = 0
        record.available_depth = 1
        record.commit_offset = record.next_offset
        self._bind()

    def forget_era(self) -> None:
        """Delete positions and deliveries. Deadlines of pages stay in the index, and leave it when they are due."""
        self.pause(0)
        if self.record.orderly and self.order_info.head.due_ms:
            self.queue.set_deadline(self.era_no, DEADLINE_BATCH, 0, self.order_info.head.due_ms, 0)
        if self.era_no != self.record.lane_no:
            self._overlay.drop(self.prefix)
            self.queue.forget_number(self.era_no)
        else:  # the keys of parked pops begin alike
            for tag in _ERA_TAGS:
                self._overlay.drop(self.prefix + tag)
