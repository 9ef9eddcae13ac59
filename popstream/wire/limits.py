"""The ranges of values in operations. The kernel refuses values outside them; clients check before they send.

docs/semantics.md, "Ranges of values", lists them for readers.
"""

from typing import Final

__all__ = [
    "ATTEMPTS_MAX",
    "BACK_OFF_STEPS_MAX",
    "CAUSE_CHARACTERS_MAX",
    "DELAY_MS_MAX",
    "ENTRIES_MAX",
    "INNER_BATCH_KEYS_BYTES_MAX",
    "INNER_BATCH_MESSAGES_MAX",
    "INT64_MAX",
    "INVISIBLE_TIME_MS_MAX",
    "IN_FLIGHT_MAX",
    "NAME_BYTES_MAX",
    "OFFSET_MAX",
    "OPS_TOPIC_RECORD_BYTES_MAX",
    "OP_ID_BYTES_MAX",
    "PARKED_DEFAULT",
    "PARKED_MAX",
    "POLL_TIME_MS_MAX",
    "POP_MESSAGES_MAX",
    "POP_TAGS_MAX",
    "QUEUE_ID_MAX",
    "QUOTA_MAX",
    "RANGE_OFFSETS_MAX",
    "RECORD_BYTES_MAX",
    "TAG_HASH_MAX",
    "TOPIC_BYTES_MAX",
    "UNIT_MESSAGES_MAX",
    "WINDOW_OFFSETS_DEFAULT",
    "WINDOW_OFFSETS_MAX",
    "WINDOW_OFFSETS_MIN",
]

RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Value of one record of the ops topic. The topic allows more, so that the job can answer what is too large."""
OPS_TOPIC_RECORD_BYTES_MAX: Final = 16 * 1024 * 1024
"""`max.message.bytes` of the ops topic, and what a producer of ours may send in one request."""

ENTRIES_MAX: Final = 10_000
"""Entries of one operation; also its handles and its offset ranges."""

INT64_MAX: Final = (1 << 63) - 1
OFFSET_MAX: Final = INT64_MAX
"""Greatest queue offset: Kafka's."""
RANGE_OFFSETS_MAX: Final = 1_000_000
"""Offsets of one dispatched or skipped range."""
UNIT_MESSAGES_MAX: Final = (1 << 31) - 1
"""Messages in one unit: `count` of a dispatched range."""
INNER_BATCH_MESSAGES_MAX: Final = 1_000_000
"""Messages of one inner batch: header `popstream-batch-count`."""
INNER_BATCH_KEYS_BYTES_MAX: Final = 256 * 1024
"""Hashes of the keys and message ids of one inner batch: header `popstream-batch-keys`."""

INVISIBLE_TIME_MS_MAX: Final = 12 * 60 * 60 * 1000
"""12 hours, as in Amazon SQS. Also the longest step of a back-off."""
DELAY_MS_MAX: Final = 7 * 24 * 60 * 60 * 1000
"""How far ahead the delivery of a message may be put off."""
POLL_TIME_MS_MAX: Final = INVISIBLE_TIME_MS_MAX
"""How long a pop may wait for its first message."""

POP_MESSAGES_MAX: Final = 10_000
"""Messages that one pop may lease."""
POP_TAGS_MAX: Final = 64
"""Tags that one pop may choose by."""
TAG_HASH_MAX: Final = (1 << 64) - 1
"""Greatest hash of a tag; the least is 1, and 0 means no tag."""

OP_ID_BYTES_MAX: Final = 128
"""An op_id, in UTF-8; at least 1."""
NAME_BYTES_MAX: Final = 255
"""Group, client_id, attempt_id, topic_id, in UTF-8; at least 1."""
TOPIC_BYTES_MAX: Final = 249
"""Name of a topic; Kafka's limit."""
QUEUE_ID_MAX: Final = (1 << 31) - 1
"""Greatest queue id: Kafka's greatest partition."""

ATTEMPTS_MAX: Final = 65_535
"""Greatest `max_attempts` of a policy or a pop; 0 means no limit."""
BACK_OFF_STEPS_MAX: Final = 32
"""Values in `back_off_ms` of a policy or a pop."""
CAUSE_CHARACTERS_MAX: Final = 512
"""`cause` of a change."""
PARKED_DEFAULT: Final = 1024
"""Parked pops of a lane whose policy does not say otherwise."""
PARKED_MAX: Final = 8_192
"""Parked pops of one lane that a policy may allow."""
QUOTA_MAX: Final = 1_000_000
"""Greatest quota of a policy, but for `client_parked_max`; 0 means none."""
IN_FLIGHT_MAX: Final = (1 << 31) - 1
"""Greatest `in_flight_max` of a policy; 0 means no limit."""
WINDOW_OFFSETS_DEFAULT: Final = 4_194_304
WINDOW_OFFSETS_MIN: Final = 1_000_000
WINDOW_OFFSETS_MAX: Final = 1 << 30
"""Bounds and default of `window_max` of a policy: the offsets between the commit position and the last one written."""
