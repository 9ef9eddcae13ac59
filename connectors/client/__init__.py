"""The client: `Producer` sends, `Consumer` pops and acks. It needs kafka-python, msgspec and xxhash alone."""

from connectors.client.async_consumer import AsyncConsumer
from connectors.client.consumer import Consumer
from connectors.client.errors import (
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
from connectors.client.exchange.transport import Transport, new_op_id
from connectors.client.existing import DispatchReport, dispatch_existing
from connectors.client.lease.renewal import RenewalPolicy
from connectors.client.message import (
    Message,
    Outcome,
    PopResult,
    Receipt,
    ReceiptHandle,
    Record,
    SendResult,
    all_applied,
)
from connectors.client.payload.payloads import FetchCounts
from connectors.client.pop.pops import FilterVerdict
from connectors.client.producer import Producer
from connectors.client.send.outgoing import OutgoingMessage
from connectors.client.settings import ClientSettings
from connectors.client.tags import tag_hash

__all__ = [
    "AnswerTimeout",
    "AnswerUnreadable",
    "AsyncConsumer",
    "ClientClosed",
    "ClientSettings",
    "Consumer",
    "DispatchReport",
    "FetchCounts",
    "FilterVerdict",
    "Message",
    "NotDeclared",
    "NotDispatched",
    "NotWritten",
    "Outcome",
    "OutcomeUnknown",
    "OutgoingMessage",
    "PayloadMissing",
    "PopResult",
    "Producer",
    "Receipt",
    "ReceiptHandle",
    "Record",
    "Refused",
    "RenewalPolicy",
    "SendResult",
    "Transport",
    "all_applied",
    "dispatch_existing",
    "new_op_id",
    "tag_hash",
]
