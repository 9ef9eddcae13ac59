"""A consumer that writes down what it is told, before it acts on it."""

from collections.abc import Sequence
from concurrent.futures import Future

from pipelines.demo.journal import Acked, Changed, Journal, Popped, runs_of
from pipelines.demo.key_order import Keyed, KeyOrder
from pipelines.demo.lifeline import Lifeline
from pipelines.demo.messages import content_hash, is_whole, key_of
from pipelines.demo.orders import Orders
from popstream import ClientSettings, Consumer, Message, Outcome

__all__ = ["Recorder", "client_options", "keyed"]

ANSWER_TIMEOUT_MS = 120_000


def client_options(orders: Orders) -> dict[str, object]:
    """Options of every client of the demo. They wait long for answers: a slow machine is no failure."""
    known = {"client_id": orders.name, "prefix": orders.prefix, "answer_timeout_ms": ANSWER_TIMEOUT_MS}
    ClientSettings(bootstrap_servers=orders.bootstrap_servers, **known)  # type: ignore[arg-type]
    return known


class Recorder:
    """Pops, acks and changes through a consumer; each outcome goes to the journal. Safe for use by many threads."""

    def __init__(self, orders: Orders, consumer: Consumer, journal: Journal, lifeline: Lifeline) -> None:
        self._orders = orders
        self._consumer = consumer
        self._journal = journal
        self._lifeline = lifeline

    def pop(
        self,
        queue_id: int,
        max_messages: int,
        invisible_time_ms: int,
        poll_time_ms: int,
        *,
        key_order: KeyOrder | None = None,
    ) -> list[Message]:
        """Pop, in order when the order is watched, and write down what came: when, for how long, which content."""
        popped = self._consumer.pop(
            self._orders.topic,
            queue_id,
            max_messages,
            invisible_time_ms,
            poll_time_ms,
            order=key_order is not None,
        )
        messages = popped.messages
        unread = popped.gone_count + popped.late_count
        if not messages and not unread:
            return messages
        ranges: list[tuple[int, int, int]] = []
        for message in messages:
            if ranges and ranges[-1][1:] == (message.queue_offset - 1, message.attempt):
                ranges[-1] = (ranges[-1][0], message.queue_offset, message.attempt)
            else:
                ranges.append((message.queue_offset, message.queue_offset, message.attempt))
        values = [message.value or b"" for message in messages]
        self._journal.write(
            Popped(
                queue_id=queue_id,
                op_id=popped.op_id,
                pop_time_ms=messages[0].pop_time_ms if messages else 0,
                next_visible_time_ms=messages[0].next_visible_time_ms if messages else 0,
                ranges=ranges,
                hashes=b"".join(map(content_hash, values)).hex(),
                unread=unread,
                broken=sum(1 for value in values if not is_whole(value)) if self._orders.source.is_made else 0,
                out_of_order=0 if key_order is None else key_order.count_wrong(map(keyed, messages)),
            )
        )
        self._lifeline.count(popped=len(messages), redelivered=sum(message.attempt > 1 for message in messages))
        return messages

    def ack(self, messages: Sequence[Message]) -> "Future[list[Outcome]]":
        """Ack soon; the future is done when the outcomes are written down."""
        recorded: Future[list[Outcome]] = Future()
        self._consumer.ack_async(messages).add_done_callback(
            lambda answered: self._record_ack(messages, answered, recorded)
        )
        return recorded

    def change(self, messages: Sequence[Message], invisible_time_ms: int, *, suspend: bool = False) -> None:
        """Change the invisible time of messages of one queue, and write down the outcomes."""
        outcomes = self._consumer.change_invisible(messages, invisible_time_ms, suspend=suspend)
        times = {outcome.next_visible_time_ms for outcome in outcomes if outcome.applied}
        self._journal.write(
            Changed(
                queue_id=messages[0].queue_id,
                invisible_time_ms=invisible_time_ms,
                next_visible_time_ms=max((time for time in times if time is not None), default=0),
                runs=_runs(messages, outcomes),
            )
        )

    def _record_ack(
        self, messages: Sequence[Message], answered: "Future[list[Outcome]]", recorded: "Future[list[Outcome]]"
    ) -> None:
        try:
            outcomes = answered.result()
            self._journal.write(Acked(queue_id=messages[0].queue_id, runs=_runs(messages, outcomes)))
        except Exception as error:  # noqa: BLE001 - whoever waits for the future hears of it
            recorded.set_exception(error)
            return
        self._lifeline.count(acked=sum(outcome.applied for outcome in outcomes))
        recorded.set_result(outcomes)


def keyed(message: Message) -> Keyed:
    """A message as one of its key."""
    return Keyed(message.queue_id, message.queue_offset, key_of(message.value or b""))


def _runs(messages: Sequence[Message], outcomes: Sequence[Outcome]) -> list[tuple[int, int, str, bool]]:
    return runs_of(
        (message.queue_offset, outcome.reason.value, outcome.applied)
        for message, outcome in zip(messages, outcomes, strict=True)
    )
