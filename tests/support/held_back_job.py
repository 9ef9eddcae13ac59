"""A job in memory whose answers can be held back, as those of a real one are on their way for some time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popstream.testing.memory_job import MemoryJob

if TYPE_CHECKING:
    from popstream.testing._memory_link import MemoryLink

__all__ = ["HeldBackJob"]


class HeldBackJob(MemoryJob):
    """Decides at once; while `holds_back` is set, answers wait for `deliver`."""

    def __init__(self) -> None:
        super().__init__()
        self.holds_back = False
        self._waiting: list[tuple[MemoryLink, bytes]] = []

    def link(self) -> MemoryLink:
        """Return a link whose answers can be held back."""
        link = super().link()
        bring = link.bring

        def bring_later(frame: bytes) -> None:
            if self.holds_back:
                self._waiting.append((link, frame))
            else:
                bring(frame)

        link.bring = bring_later  # type: ignore[method-assign]
        return link

    def deliver(self) -> None:
        """Deliver the answers that were held back, and hold back no more."""
        self.holds_back = False
        waiting, self._waiting = self._waiting, []
        for link, frame in waiting:
            link.bring(frame)
