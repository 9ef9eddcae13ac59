"""Shares one fetcher among all consumers of a process."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from popstream.errors import ClientClosed
from popstream.payload.kafka_payloads import KafkaPayloads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popstream.payload.payloads import FetchCounts, Fetched, Payload, Payloads
    from popstream.settings import ClientSettings

__all__ = ["shared_payloads"]


class _Share:
    """One user of a shared fetcher. In a forked process it goes on with a fetcher of that process."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.is_closed = False

    def fetch(
        self,
        topic: str,
        queue_id: int,
        ranges: Sequence[tuple[int, int]],
        timeout_s: float,
        bytes_max: int | None = None,
    ) -> Fetched:
        return _FETCHERS.of(self).fetch(topic, queue_id, ranges, timeout_s, bytes_max)

    def expect(self, topic: str, queue_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        with contextlib.suppress(ClientClosed):
            _FETCHERS.of(self).expect(topic, queue_id, ranges)

    def read(
        self, topic: str, queue_id: int, queue_offset: int, count: int, timeout_s: float
    ) -> list[tuple[int, Payload]]:
        return _FETCHERS.of(self).read(topic, queue_id, queue_offset, count, timeout_s)

    def queue_ids(self, topic: str) -> list[int]:
        return _FETCHERS.of(self).queue_ids(topic)

    def counts(self) -> FetchCounts:
        return _FETCHERS.of(self).counts()

    def close(self) -> None:
        _FETCHERS.leave(self)


class _Fetchers:
    """The fetchers of this process, and their users."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start empty, after a fork: the threads and locks of the parent's fetchers do not work in the child."""
        self._lock = threading.Lock()
        self._used: list[tuple[KafkaPayloads, list[_Share]]] = []

    def of(self, share: _Share) -> KafkaPayloads:
        """Return the fetcher of a user, and register the user."""
        with self._lock:
            if share.is_closed:
                raise ClientClosed.of("fetcher of", share.settings.client_id)
            for fetcher, users in self._used:
                if _is_same_kafka(users[0].settings, share.settings):
                    if share not in users:
                        users.append(share)
                    return fetcher
            fetcher = KafkaPayloads(share.settings)
            self._used.append((fetcher, [share]))
            return fetcher

    def leave(self, share: _Share) -> None:
        """Unregister a user; close the fetcher after its last one."""
        last = None
        with self._lock:
            share.is_closed = True
            for number, (fetcher, users) in enumerate(self._used):
                if share in users:
                    users.remove(share)
                    if not users:
                        del self._used[number]
                        last = fetcher
                    break
        if last is not None:
            last.close()


_FETCHERS = _Fetchers()
os.register_at_fork(after_in_child=_FETCHERS.forget)


def shared_payloads(settings: ClientSettings) -> Payloads:
    """Return a share of the process's fetcher for a Kafka.

    Settings with the same servers, `kafka_config`, `kafka` and `fetch_client` share one. It is closed with its last
    share. After a fork the child gets a fetcher of its own.
    """
    share = _Share(settings)
    _FETCHERS.of(share)
    return share


def _is_same_kafka(one: ClientSettings, other: ClientSettings) -> bool:
    def facts(settings: ClientSettings) -> tuple[object, ...]:
        connection = settings.connection
        servers = {*connection.bootstrap_servers.split(",")}
        return servers, connection.config_file, connection.kafka_python, settings.fetch_client

    return facts(one) == facts(other)
