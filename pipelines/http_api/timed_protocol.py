"""HTTP/1.1 for a server with few places: a connection that does not send its request in time is closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

__all__ = ["REQUEST_S_MAX", "TimedProtocol"]

REQUEST_S_MAX = 10.0
"""What a caller has to send a whole request."""
CHECK_S = 1.0

_RECEIVING = (h11.IDLE, h11.SEND_BODY)


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, which waits for ever for a request, with a time limit.

    uvicorn counts connections, and refuses all others while it has as many as it may: without a limit some that are
    silent would keep out the probes of a supervisor, which would then end a healthy job.
    """

    _timer: asyncio.TimerHandle | None = None
    _waited_s = 0.0
    _last_cycle: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(CHECK_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """End to watch it."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _check(self) -> None:
        has_moved = self.cycle is not self._last_cycle or self.conn.their_state not in _RECEIVING
        self._last_cycle = self.cycle
        self._waited_s = 0.0 if has_moved else self._waited_s + CHECK_S
        if self._waited_s >= REQUEST_S_MAX:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(CHECK_S, self._check)
