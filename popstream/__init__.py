"""POP consumption and batch consume queues on Kafka, Spark, RocksDB and Delta Lake: the public names.

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
"""

from broker_state.reason import Reason
from connectors.client import (
    AnswerTimeout,
    AnswerUnreadable,
    AsyncConsumer,
    ClientClosed,
    ClientSettings,
    Consumer,
    DispatchReport,
    FetchCounts,
    FilterVerdict,
    Message,
    NotDeclared,
    NotDispatched,
    NotWritten,
    Outcome,
    OutcomeUnknown,
    OutgoingMessage,
    PayloadMissing,
    PopResult,
    Producer,
    Receipt,
    ReceiptHandle,
    Record,
    Refused,
    RenewalPolicy,
    SendResult,
    Transport,
    all_applied,
    dispatch_existing,
    new_op_id,
    tag_hash,
)
from connectors.errors import Corrupt, Fenced, Invalid, PopstreamError, Unavailable

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
