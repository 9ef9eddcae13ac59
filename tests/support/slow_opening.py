"""Clients for coroutines whose connection is made when a test lets it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest

from popstream import ClientClosed, Consumer, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream import AsyncConsumer, AsyncProducer

__all__ = ["SlowOpening", "close_while_it_opens"]

Client = TypeVar("Client", bound=Consumer[Any] | Producer[Any])


class SlowOpening(Generic[Client]):
    """Stands in for what makes the wrapped client.

    Attributes:
        made: The clients, in the order in which they were ready.
        has_begun: Set once one is being made.
        may_end: None is ready before this is set.
    """

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self.made: list[Client] = []
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> Client:
        self.has_begun.set()
        self.may_end.wait()
        one = self._make()
        self.made.append(one)
        return one

    @property
    def are_closed(self) -> list[bool]:
        """Whether each of them is closed."""
        return [one._is_closed for one in self.made]


async def close_while_it_opens(client: AsyncConsumer[Any] | AsyncProducer[Any], opening: SlowOpening[Any]) -> None:
    """Close a client that is being opened; its `open` must raise ClientClosed."""
    opened = asyncio.create_task(client.open())
    while not opening.has_begun.is_set():
        await asyncio.sleep(0.001)
    await client.close()
    opening.may_end.set()
    with pytest.raises(ClientClosed):
        await opened
