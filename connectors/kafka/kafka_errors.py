"""The errors of kafka-python, as coded ones."""

import contextlib
from collections.abc import Iterator

from kafka.errors import KafkaError

from popstream.wire.base_errors import Unavailable

__all__ = ["kafka_errors"]


@contextlib.contextmanager
def kafka_errors(problem: str, subject: str) -> Iterator[None]:
    """Turn an error of Kafka in the block, also of a client that is made there, into `Unavailable`.

    Args:
        problem: What cannot be done, for the message.
        subject: The topic or address concerned.

    Raises:
        Unavailable: The block raised a KafkaError.
    """
    try:
        yield
    except KafkaError as error:
        message = f"{problem}: {error}"
        raise Unavailable(message, subject=subject) from error
