"""Structured logs: one JSON object per line in the job's log file, or readable lines on a terminal."""

import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

import structlog

__all__ = ["configure_logs"]

FILE_BYTES_MAX = 16 * 1024 * 1024
OURS = ("broker_state", "checkpoints", "connectors", "expectations", "pipelines")


def configure_logs(level: str, file: Path | None = None) -> None:
    """Write logs of `level` and above to `file` as JSON, or without a file to standard error as text.

    Warnings of libraries are included. A file of 16 MiB is rotated to `<name>.1`, which replaces the one before. The
    file of an earlier call is closed.
    """
    handler: logging.Handler
    renderers: list[structlog.typing.Processor]
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
        renderers = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(file, maxBytes=FILE_BYTES_MAX, backupCount=1, encoding="utf-8")
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    facts: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=facts,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    structlog.configure(
        processors=[*facts, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
    # It logs each reconnect. Permanent errors are raised.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.ERROR)
