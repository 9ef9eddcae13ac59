"""Classifies the errors of Kafka: whether the message is certainly not written, and whether to send it again."""

from __future__ import annotations

from kafka.errors import (
    BrokerNotAvailableError,
    ClusterAuthorizationFailedError,
    CorruptRecordError,
    IllegalStateError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    PolicyViolationError,
    RecordListTooLargeError,
    ThrottlingQuotaExceededError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)

from popstream.errors import NotWritten, OutcomeUnknown
from popstream.send.shipment import SendAgain, SendOutcome
from popstream.wire.base_errors import Invalid

__all__ = [
    "NOT_NOW",
    "REFUSED",
    "REFUSED_BY_BATCH",
    "REFUSED_WITH_BATCH",
    "not_accepted",
    "send_outcome_of",
    "without_offset",
]

REFUSED_BY_BATCH = (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    CorruptRecordError,
)
"""A message may be refused with these because of another message in its batch."""
REFUSED = (
    *REFUSED_BY_BATCH,
    InvalidRequiredAcksError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
"""The broker checks these before it writes, and will refuse the record again."""
TRANSIENT = (
    BrokerNotAvailableError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    ThrottlingQuotaExceededError,
    UnknownTopicOrPartitionError,
)
"""The broker has not written, and may do so next time. Errors that it reports after writing are not among them."""
NOT_NOW = (KafkaTimeoutError, IllegalStateError)
"""kafka-python has no metadata of the topic, or was closed because another KafkaProducer takes over."""
REFUSED_WITH_BATCH = "part of a batch which had one more more invalid records"
"""The text of kafka-python 3 for a valid record of a batch with a refused one."""

NO_PRODUCER_ID = ClusterAuthorizationFailedError.__name__
"""In the text of kafka-python for an idempotent producer that may not write to any topic, and so gets no id."""


def send_outcome_of(error: Exception, topic: str, *, is_alone: bool, is_only_try: bool = False) -> SendOutcome:
    """Return what an error proves about a message, and whether to send the message again by itself.

    A transient error proves nothing about the attempts before it. Refusals of records with earlier attempts do not
    appear as refusals here (`ResilientProducer`).

    Args:
        error: The error of kafka-python for the record.
        topic: The message topic.
        is_alone: Whether it was the only message of its record and of its batch.
        is_only_try: Whether kafka-python has sent the record once.

    >>> from kafka.errors import KafkaError
    >>> errors = (MessageSizeTooLargeError(), KafkaError())
    >>> [send_outcome_of(error, "orders", is_alone=False).retry.value for error in errors]
    ['alone', 'no']
    >>> send_outcome_of(KafkaTimeoutError("no answer"), "orders", is_alone=True).error
    OutcomeUnknown("whether the message was written to orders is unknown: KafkaTimeoutError('no answer')")
    """
    is_of_batch = isinstance(error, REFUSED_BY_BATCH) or REFUSED_WITH_BATCH in str(error)
    found: Exception
    if isinstance(error, TopicAuthorizationFailedError):
        found = _not_allowed(topic)
    elif isinstance(error, REFUSED) or is_of_batch:
        found = Invalid(f"Kafka refuses the message to {topic}: {error!r}", subject=topic)
    elif isinstance(error, TRANSIENT) and is_only_try:
        found = NotWritten(f"the message is not written to {topic}: {error!r}", subject=topic)
    else:
        hint = f": grant Write on topic {topic}" if NO_PRODUCER_ID in str(error) else ""
        found = OutcomeUnknown(f"whether the message was written to {topic} is unknown: {error!r}{hint}", subject=topic)
    found.__cause__ = error
    is_worth_a_retry = isinstance(found, NotWritten) or (is_of_batch and not is_alone)
    return SendOutcome(error=found, retry=SendAgain.ALONE if is_worth_a_retry else SendAgain.NO)


def not_accepted(error: Exception, topic: str, *, is_alone: bool) -> SendOutcome:
    """Return the outcome of a message that kafka-python does not accept, so that it is certainly not written."""
    found: Exception
    if isinstance(error, NOT_NOW):
        found, retry = NotWritten(f"{topic} cannot be sent to now: {error!r}", subject=topic), SendAgain.TOGETHER
    elif isinstance(error, TopicAuthorizationFailedError):
        found, retry = _not_allowed(topic), SendAgain.NO
    else:
        found = Invalid(f"the message cannot be sent to {topic}: {error!r}", subject=topic)
        retry = SendAgain.NO if is_alone else SendAgain.ALONE
    found.__cause__ = error
    return SendOutcome(error=found, retry=retry)


def _not_allowed(topic: str) -> Invalid:
    message = f"Kafka does not allow this client to send to {topic}: grant Write on topic {topic}"
    return Invalid(message, subject=topic)


def without_offset(topic: str) -> SendOutcome:
    """Return the outcome of a record that Kafka has from an earlier attempt, without knowing its offset any more."""
    message = f"the message is written to {topic}, but Kafka does not return its offset"
    return SendOutcome(error=OutcomeUnknown(message, subject=topic))
