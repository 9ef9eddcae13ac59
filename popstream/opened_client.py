"""What the clients for asyncio have in common: a client that blocks while it is made, and is made once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from popstream.errors import ClientClosed
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream.awaitable import CallThreads

__all__ = ["OpenedClient"]


class _Closable(Protocol):
    @property
    def settings(self) -> Any: ...  # noqa: ANN401 - has the `client_id`

    def close(self) -> None: ...


Client = TypeVar("Client", bound=_Closable)


class OpenedClient(Generic[Client]):
    """A client, from its `open` on. Not thread-safe.

    Args:
        kind: "consumer" or "producer".
        make: Makes the client.
        threads: Threads for calls that block.
        prepare: Called in the thread of the event loop before `make` runs in another one.

    Attributes:
        client: The client; None: it was never opened.
        is_closed: Set by the owner when it closes; after that nothing is opened.
    """

    def __init__(
        self,
        kind: str,
        make: Callable[[], Client],
        threads: CallThreads,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._kind = kind
        self._make = make
        self._threads = threads
        self._prepare = prepare
        self._opening = asyncio.Lock()
        self.client: Client | None = None
        self.is_closed = False

    @property
    def opened(self) -> Client:
        """The client.

        Raises:
            Invalid: It is not open.
        """
        if self.client is None:
            message = f"the {self._kind} is not open: use `async with`, or `await open()` first"
            raise Invalid(message)
        return self.client

    async def open(self) -> None:
        """Make the client, once. If its owner closes meanwhile, what was made is closed, too.

        Raises:
            ClientClosed: It is closed.
            PopstreamError: As `make`.
        """
        async with self._opening:
            if self.client is None:
                self.require_not_closed()
                self._prepare()
                client = await self._threads.run(self._make, undo=lambda made: made.close())
                if self.is_closed:
                    await self._threads.run(client.close)
                self.require_not_closed()
                self.client = client

    def require_not_closed(self) -> None:
        """Raise `ClientClosed` if it is closed."""
        if self.is_closed:
            raise ClientClosed.of(self._kind, None if self.client is None else self.client.settings.client_id)
