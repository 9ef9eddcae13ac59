"""Another clock for one module alone: `time` is one object for the whole process, threads of libraries included."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

__all__ = ["replace_time"]


def replace_time(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Callable[..., Any]) -> None:
    """Let `time.<name>` of a module be another function until the test ends.

    Args:
        monkeypatch: Of the test.
        module: Its dotted name; it must import `time` as a whole.
        functions: What takes the place of the functions of these names.
    """
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(**(vars(time) | functions)))
