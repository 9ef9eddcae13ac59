"""Structured logs: one JSON object per line in the job's log file, or readable lines on a terminal."""

import contextlib
import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

import structlog

from pipelines.printed_commands import with_options

__all__ = ["configure_logs"]

FILE_BYTES_MAX = 16 * 1024 * 1024
OURS = ("broker_state", "checkpoints", "connectors", "expectations", "pipelines")


def configure_logs(level: str, file: Path | None = None) -> None:
    """Write logs of `level` and above to `file` as JSON, or without a file to standard error as text.

    Warnings of libraries are included. A file of 16 MiB is rotated to `<name>.1`, which replaces the one before. The
    file of an earlier call is closed. When the file cannot be written, one line on standard error says so.
    """
    handler: logging.Handler
    renderers: list[structlog.typing.Processor]
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
        renderers = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(file, maxBytes=FILE_BYTES_MAX, backupCount=1, encoding="utf-8")
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    facts: list[structlog.typing.Processor] = [
        _complete_commands,
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


class _LogFile(RotatingFileHandler):
    """A log file that may be on a full disk: it loses records then, and says so once, without tracebacks."""

    _is_failing = False
    _has_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        self._has_failed = False
        super().emit(record)
        self._is_failing = self._has_failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - as logging has it
        self._has_failed = True
        if not self._is_failing:
            error = sys.exc_info()[1]
            reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError, ValueError):  # of a terminal that is gone
                print(f"popstream: {self.baseFilename} cannot be written: {reason}", file=sys.stderr, flush=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of records that were not written
            super().close()


def _complete_commands(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if isinstance(event.get("error"), str):
        event["error"] = with_options(event["error"])
    return event
