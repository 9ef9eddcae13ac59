"""Leasing-queue semantics for plain Kafka topics: the client library.

```python
from popstream import Consumer, Producer

with Producer("localhost:9092") as producer:
    producer.send("orders", b"one")

with Consumer("localhost:9092", group="billing", topics=["orders"]) as consumer:
    for message in consumer:
        with message:
            print(message.queue_offset, message.value)
```

Importing this needs kafka-python, msgspec and xxhash; the job and its command line come with `popstream[pipeline]`.

The names are imported when they are first used: the kernel needs `popstream.wire`, and must not load a Kafka client
with it.
"""

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from popstream.async_consumer import AsyncConsumer
    from popstream.consumer import Consumer
    from popstream.errors import (
        AnswerTimeout,
        AnswerUnreadable,
        ClientClosed,
        NotDeclared,
        NotDispatched,
        NotWritten,
        OutcomeUnknown,
        PayloadMissing,
        Refused,
    )
    from popstream.exchange.transport import Transport, new_op_id
    from popstream.lease.renewal import RenewalPolicy
    from popstream.message import Message, PopResult
    from popstream.outcome import Outcome, Receipt, ReceiptHandle, Record, SendResult, all_applied
    from popstream.payload.payloads import FetchCounts
    from popstream.pop.pops import FilterVerdict
    from popstream.producer import Producer
    from popstream.send.backfill import DispatchReport, dispatch_existing
    from popstream.send.outgoing import OutgoingMessage
    from popstream.settings import ClientSettings
    from popstream.wire.failures import Corrupt, Fenced, Invalid, PopstreamError, Unavailable
    from popstream.wire.headers import tag_hash
    from popstream.wire.reason import Reason

__all__ = [
    "AnswerTimeout",
    "AnswerUnreadable",
    "AsyncConsumer",
    "ClientClosed",
    "ClientSettings",
    "Consumer",
    "Corrupt",
    "DispatchReport",
    "Fenced",
    "FetchCounts",
    "FilterVerdict",
    "Invalid",
    "Message",
    "NotDeclared",
    "NotDispatched",
    "NotWritten",
    "Outcome",
    "OutcomeUnknown",
    "OutgoingMessage",
    "PayloadMissing",
    "PopResult",
    "PopstreamError",
    "Producer",
    "Reason",
    "Receipt",
    "ReceiptHandle",
    "Record",
    "Refused",
    "RenewalPolicy",
    "SendResult",
    "Transport",
    "Unavailable",
    "all_applied",
    "dispatch_existing",
    "new_op_id",
    "tag_hash",
]

__version__ = _version("popstream")

_MODULES = {
    "popstream.async_consumer": ("AsyncConsumer",),
    "popstream.consumer": ("Consumer",),
    "popstream.errors": (
        "AnswerTimeout",
        "AnswerUnreadable",
        "ClientClosed",
        "NotDeclared",
        "NotDispatched",
        "NotWritten",
        "OutcomeUnknown",
        "PayloadMissing",
        "Refused",
    ),
    "popstream.exchange.transport": ("Transport", "new_op_id"),
    "popstream.lease.renewal": ("RenewalPolicy",),
    "popstream.message": ("Message", "PopResult"),
    "popstream.outcome": ("Outcome", "Receipt", "ReceiptHandle", "Record", "SendResult", "all_applied"),
    "popstream.payload.payloads": ("FetchCounts",),
    "popstream.pop.pops": ("FilterVerdict",),
    "popstream.producer": ("Producer",),
    "popstream.send.backfill": ("DispatchReport", "dispatch_existing"),
    "popstream.send.outgoing": ("OutgoingMessage",),
    "popstream.settings": ("ClientSettings",),
    "popstream.wire.failures": ("Corrupt", "Fenced", "Invalid", "PopstreamError", "Unavailable"),
    "popstream.wire.headers": ("tag_hash",),
    "popstream.wire.reason": ("Reason",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        message = f"module 'popstream' has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
