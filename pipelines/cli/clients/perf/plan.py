"""What a load consists of."""

import msgspec

from pipelines.cli.clients.perf.ack_form import AckForm
from pipelines.cli.target import Target

__all__ = ["Plan"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One load.

    Attributes:
        target: The job.
        load_id: 8 bytes that tell its messages from all others.
        topic: Message topic.
        queues: Queues of the topic.
        messages: How many are sent; each group consumes all of them.
        message_bytes: Size of a value.
        rate: Messages sent in a second while consumers run; 0: all are sent first, as fast as possible.
        groups: Consumer groups.
        workers: Processes per group, each with one consumer.
        threads: Threads of a consumer that call the handler, or pop.
        ack: How they take and ack messages.
        pop_size: Greatest number of messages of a pop (`ack` POP), or of a call of the handler (`ack` SET).
        prefetch: Messages that a consumer leases ahead; not for `ack` POP.
        invisible_time_ms: Of each lease.
        stall_s: The load has failed when nothing arrives for this time.
    """

    target: Target
    load_id: bytes
    topic: str
    queues: int
    messages: int
    message_bytes: int
    rate: float
    groups: tuple[str, ...]
    workers: int
    threads: int
    ack: AckForm
    pop_size: int
    prefetch: int
    invisible_time_ms: int
    stall_s: float
