"""Counts calls of this project's functions: a cost that no busy machine changes.

Those of libraries depend on the version of Python, as do the frames of comprehensions, and generators are counted by
the functions that they call.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

__all__ = ["Calls"]

_ROOT = Path(__file__).parents[2]
_OURS = tuple(f"{_ROOT / package}/" for package in ("broker_state", "connectors", "pipelines", "popstream"))
_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>"}


class Calls:
    """Counts those of the blocks that are entered with `counted`, in their thread."""

    def __init__(self) -> None:
        self.count = 0
        self._is_counted: dict[CodeType, bool] = {}

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count those of the block."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        counts = self._is_counted.get(code)
        if counts is None:
            is_function = code.co_name not in _COMPREHENSIONS and not code.co_flags & inspect.CO_GENERATOR
            counts = self._is_counted[code] = is_function and code.co_filename.startswith(_OURS)
        self.count += counts
