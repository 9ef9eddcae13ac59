"""What a client can be told; every time-out has a reason, and none of them is needed to start."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import msgspec

from popstream.wire.failures import Invalid
from popstream.wire.limits import RECORD_BYTES_MAX

__all__ = ["ClientSettings", "new_client_id"]

RESEND_WINDOW_MS = 8 * 60_000
"""Re-sends stop this long after the first send.

The job remembers an op_id for at least 9 minutes of record time; a re-send may still sit in the Kafka producer for
`delivery_timeout_ms`. Later than that the same operation could be decided twice.
"""


def new_client_id() -> str:
    """Make a client id that no other client has.

    >>> new_client_id().startswith("popstream-"), new_client_id() == new_client_id()
    (True, False)
    """
    return f"popstream-{secrets.token_hex(6)}"


DELIVERY_TIMEOUT_MS_MAX = 60_000


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one client.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        client_id: Name in Kafka's logs, in the audit tables, and for `return_client`; must be unique among the clients
            of a group.
        prefix: Names the job: its topics are `<prefix>.ops`, `<prefix>.results` and so on.
        ops_topic: Topic of the operations, if its name is another one.
        results_topic: Topic of the answers, likewise.
        notifications_topic: Topic of the notifications, likewise.
        answer_timeout_ms: How long a call waits for its answer (a pop: beyond its poll time) before it raises
            `AnswerTimeout`.
        resend_after_ms: Without an answer for so long an operation is sent again, with the same op_id and the same
            bytes; each further time waits twice as long. Shorter: an answer that was lost is made up for sooner;
            longer: fewer records while the job is down.
        resend_after_ms_max: Bound of that doubling.
        delivery_timeout_ms: How long the Kafka producer tries to deliver a record before it gives up.
        ops_bytes_max: Largest operation record; the job refuses more than 4 MiB.
        kafka: Settings for every kafka-python client, such as `security_protocol` and `sasl_mechanism`.
        history_file: Record there every operation and what was answered, for `popstream history check`; None: nowhere.
    """

    bootstrap_servers: str
    client_id: str
    prefix: str = "popstream"
    ops_topic: str = ""
    results_topic: str = ""
    notifications_topic: str = ""
    answer_timeout_ms: int = 60_000
    resend_after_ms: int = 5_000
    resend_after_ms_max: int = 60_000
    delivery_timeout_ms: int = 30_000
    ops_bytes_max: int = RECORD_BYTES_MAX
    kafka: dict[str, Any] = {}
    history_file: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            Invalid: With one line for each setting that is wrong.
        """
        wrong = [
            f"{name} must be at least 1, not {getattr(self, name)}"
            for name in (
                "answer_timeout_ms",
                "resend_after_ms",
                "resend_after_ms_max",
                "delivery_timeout_ms",
                "ops_bytes_max",
            )
            if getattr(self, name) < 1
        ]
        wrong += [
            f"{name} must not be empty"
            for name in ("bootstrap_servers", "client_id", "prefix")
            if not getattr(self, name)
        ]
        if self.delivery_timeout_ms > DELIVERY_TIMEOUT_MS_MAX:
            wrong.append(
                f"delivery_timeout_ms must be at most {DELIVERY_TIMEOUT_MS_MAX}, not {self.delivery_timeout_ms}:"
                " re-sends would come too late"
            )
        if wrong:
            message = "the client settings cannot work"
            raise Invalid(message, subject=self.client_id, details=wrong)

    @property
    def operations(self) -> str:
        """Name of the ops topic."""
        return self.ops_topic or f"{self.prefix}.ops"

    @property
    def results(self) -> str:
        """Name of the results topic."""
        return self.results_topic or f"{self.prefix}.results"

    @property
    def notifications(self) -> str:
        """Name of the notifications topic."""
        return self.notifications_topic or f"{self.prefix}.notifications"

    @property
    def queue_types(self) -> str:
        """Name of the topic with the types of message topics."""
        return f"{self.prefix}.queue_types"
