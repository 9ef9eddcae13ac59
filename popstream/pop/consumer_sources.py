"""What a consumer reads elsewhere than in Kafka: for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from popstream.payload.inner_batch import TypeOf
    from popstream.payload.payloads import Payloads
    from popstream.pop.notifications import Listen

__all__ = ["ConsumerSources"]


class ConsumerSources(msgspec.Struct, frozen=True, kw_only=True):
    """Sources other than Kafka; None: Kafka.

    Attributes:
        payloads: The records of messages.
        notifications: Which queues become poppable; see `Subscription`.
        job_types: The types of topics that the job reports.
    """

    payloads: Payloads | None = None
    notifications: Listen | None = None
    job_types: TypeOf | None = None
