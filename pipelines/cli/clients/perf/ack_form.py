"""How the consumers of a load take and ack messages; without imports, for the help of the command."""

import enum

__all__ = ["AckForm"]


class AckForm(enum.StrEnum):
    """How consumers take and ack messages.

    Attributes:
        MESSAGE: `Consumer.run`; the handler acks each message alone.
        SET: `Consumer.run_sets`; the handler acks the messages of a call together.
        POP: `Consumer.pop`; the messages of a pop are acked together, and the next pop waits for the outcomes.
    """

    MESSAGE = "message"
    SET = "set"
    POP = "pop"
