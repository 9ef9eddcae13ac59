"""Structured logs: one JSON object a line in the job's log file, or readable lines on a terminal."""

import logging
import sys
from pathlib import Path
from typing import Any

import structlog

__all__ = ["configure_logs"]


def configure_logs(level: str, file: Path | None = None) -> None:
    """Send logs of `level` and above to `file` as JSON, or without one to standard error for people.

    The file that logs went to before is closed; the last one, when the process ends.
    """
    handler: logging.StreamHandler[Any]
    renderer: structlog.typing.Processor
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(file, encoding="utf-8")
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=handler.stream),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        handlers=[handler], level=logging.WARNING, format="%(name)s %(levelname)s %(message)s", force=True
    )
    # Its reconnect attempts are no news here: what fails for good is raised.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.ERROR)
