"""Chooses the partition of the ops topic for a queue, as Kafka's Java clients do.

The key of all operations of a queue is

```
+------------------+------+---------------------------+
| topic (UTF-8)    | 0x00 | queue_id (ASCII decimal)  |
+------------------+------+---------------------------+
```

and its partition is murmur2(key) with the sign bit cleared, modulo the partition count. So all operations of a queue
are in one partition, in one order. Clients of librdkafka have another default partitioner (CRC32): set their
`partitioner` to `murmur2_random`.
"""

from __future__ import annotations

from functools import lru_cache

from kafka.partitioner import murmur2

from popstream.wire.queue_name import QueueName

__all__ = ["ops_key", "partition_of", "queue_of_ops_key"]

SIGN_BIT_CLEARED = 0x7FFF_FFFF
# Far above the number of queues of one job. An entry takes about 200 bytes; the pure-Python hash several microseconds.
CACHED_KEYS_MAX = 65_536


@lru_cache(maxsize=CACHED_KEYS_MAX)
def ops_key(topic: str, queue_id: int) -> bytes:
    r"""Return the key of all operations of one queue.

    Raises:
        ValueError: The topic is empty or holds a NUL, or the queue id is negative: the key would be ambiguous.

    >>> ops_key("orders", 12)
    b'orders\x0012'
    """
    if not topic or "\x00" in topic:
        message = f"a topic is a non-empty text without NUL, not {topic!r}"
        raise ValueError(message)
    if queue_id < 0:
        message = f"a queue id is 0 or more, not {queue_id}"
        raise ValueError(message)
    return f"{topic}\x00{queue_id}".encode()


def queue_of_ops_key(key: bytes) -> QueueName:
    r"""Return (topic, queue id) of an `ops_key`.

    >>> queue_of_ops_key(b"orders\x0012")
    ('orders', 12)
    """
    topic, queue_id = key.rsplit(b"\0", 1)
    return topic.decode(), int(queue_id)


@lru_cache(maxsize=CACHED_KEYS_MAX)
def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition of a key, as Kafka's Java producer chooses it.

    The hash is Kafka's; its test vectors, as signed numbers of Java, are

    >>> [(murmur2(text) ^ 0x8000_0000) - 0x8000_0000 for text in (b"21", b"foobar", b"a-little-bit-long-string")]
    [-973932308, -790332482, -985981536]
    >>> partition_of(b"21", 4), partition_of(b"foobar", 4), partition_of(ops_key("orders", 12), 4)
    (0, 2, 3)

    Raises:
        ValueError: The partition count is less than 1.
    """
    if partition_count < 1:
        message = f"a topic has at least 1 partition, not {partition_count}"
        raise ValueError(message)
    hashed: int = murmur2(key)
    return (hashed & SIGN_BIT_CLEARED) % partition_count
