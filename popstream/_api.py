"""The public names of `popstream`, from the modules that define them; import them from `popstream`."""

from popstream.async_consumer import AsyncConsumer
from popstream.async_producer import AsyncProducer
from popstream.awaitable import AwaitableFuture
from popstream.consumer import Consumer
from popstream.dead_letters.dead_letters import DeadLetters
from popstream.dead_letters.handling_run import LettersReport, UnredrivenLetter
from popstream.dead_letters.letter import Letter
from popstream.dead_letters.selection import LetterSelection
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
from popstream.lease.settlement import Resender
from popstream.message import FilterVerdict, Message, MessageFilter, PopResult
from popstream.observer import Observed, Observer, Settled
from popstream.outcome import Outcome, Receipt, ReceiptHandle, Record, SendResult, all_applied
from popstream.payload.payloads import FetchCounts
from popstream.payload.redelivery import Redelivery
from popstream.producer import Producer
from popstream.retries import BackOff, Reject, Retry
from popstream.send.backfill import DispatchReport, dispatch_existing
from popstream.send.outgoing import OutgoingMessage
from popstream.serializers import json_deserializer, json_serializer, msgpack_deserializer, msgpack_serializer
from popstream.settings import ClientSettings
from popstream.wire.base_errors import Corrupt, Fenced, Invalid, PopstreamError, Unavailable
from popstream.wire.command import QueueType
from popstream.wire.letter_handling import LetterHandling
from popstream.wire.reason import Reason
from popstream.wire.signing import AdminKey
from popstream.wire.tag import tag_hash

__all__ = [
    "AdminKey",
    "AnswerTimeout",
    "AnswerUnreadable",
    "AsyncConsumer",
    "AsyncProducer",
    "AwaitableFuture",
    "BackOff",
    "ClientClosed",
    "ClientSettings",
    "Consumer",
    "Corrupt",
    "DeadLetters",
    "DispatchReport",
    "Fenced",
    "FetchCounts",
    "FilterVerdict",
    "Invalid",
    "Letter",
    "LetterHandling",
    "LetterSelection",
    "LettersReport",
    "Message",
    "MessageFilter",
    "NotDeclared",
    "NotDispatched",
    "NotWritten",
    "Observed",
    "Observer",
    "Outcome",
    "OutcomeUnknown",
    "OutgoingMessage",
    "PayloadMissing",
    "PopResult",
    "PopstreamError",
    "Producer",
    "QueueType",
    "Reason",
    "Receipt",
    "ReceiptHandle",
    "Record",
    "Redelivery",
    "Refused",
    "Reject",
    "RenewalPolicy",
    "Resender",
    "Retry",
    "SendResult",
    "Settled",
    "Transport",
    "Unavailable",
    "UnredrivenLetter",
    "all_applied",
    "dispatch_existing",
    "json_deserializer",
    "json_serializer",
    "msgpack_deserializer",
    "msgpack_serializer",
    "new_op_id",
    "tag_hash",
]
