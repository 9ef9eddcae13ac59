"""Logging as it was before a test that configures it, for that is so for the whole process."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

import structlog

from pipelines.process.logs import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["logging_as_it_was"]


@contextlib.contextmanager
def logging_as_it_was() -> Iterator[None]:
    """Close the handlers that are made inside, and put back the others, all levels, and the hook of threads."""
    root = logging.getLogger()
    handlers, levels = root.handlers[:], {name: logging.getLogger(name).level for name in ["", "kafka", "py4j", *OURS]}
    hook = threading.excepthook
    try:
        yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        threading.excepthook = hook
        structlog.reset_defaults()
