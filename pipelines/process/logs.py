"""Structured logs: one JSON object per line in the job's log file, readable lines on a terminal, or as is set."""

import contextlib
import logging
import os
import sys
import threading
from logging.handlers import RotatingFileHandler
from pathlib import Path

import structlog

from pipelines.job_settings import LogFormat
from pipelines.printed_commands import completed_commands

__all__ = ["configure_logs", "rotate_in_place"]

_log = structlog.get_logger(__name__)

FILE_BYTES_MAX = 16 * 1024 * 1024
OURS = ("broker_state", "checkpoints", "connectors", "expectations", "pipelines")


def configure_logs(
    level: str, file: Path | None = None, log_format: LogFormat = LogFormat.AUTO, *, tracebacks: bool = True
) -> None:
    """Write logs of `level` and above to `file`, or without a file to standard error.

    Warnings of libraries are included, and errors that end a thread. A file of 16 MiB is rotated to `<name>.1`, which
    replaces the one before. The file of an earlier call is closed. When the file cannot be written, one line on
    standard error says so.

    Args:
        level: Of events of this project.
        file: The file.
        log_format: AUTO is JSON in a file, and text on standard error.
        tracebacks: False, for commands: of an error there is one line, its type and its text.
    """
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(file, maxBytes=FILE_BYTES_MAX, backupCount=1, encoding="utf-8")
    errors = structlog.processors.format_exc_info if tracebacks else _with_error_in_one_line
    renderer: structlog.typing.Processor
    if log_format == LogFormat.JSON or (log_format == LogFormat.AUTO and file is not None):
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=file is None and sys.stderr.isatty())
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
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, errors, renderer],
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
    # It logs the errors that it raises.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    threading.excepthook = _log_failed_thread


def rotate_in_place(file: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
    """Move the end of a file of more than `bytes_max` bytes to `<name>.1`, and empty the file; a missing one is left.

    For a file that other processes have open for appending, as `logrotate` does it with `copytruncate`: what they write
    between the two steps is lost. The moved end has at most `bytes_max` bytes.

    Raises:
        OSError: The disk is full, or the folder cannot be written to. The file is as it was.
    """
    with contextlib.suppress(FileNotFoundError), file.open("rb+") as full:
        if full.seek(0, os.SEEK_END) > bytes_max:
            full.seek(-bytes_max, os.SEEK_END)
            file.with_name(f"{file.name}.1").write_bytes(full.read(bytes_max))
            full.truncate(0)


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


def _log_failed_thread(failed: threading.ExceptHookArgs) -> None:
    thread = None if failed.thread is None else failed.thread.name
    _log.error("thread_failed", thread=thread, exc_info=failed.exc_value or failed.exc_type())


def _with_error_in_one_line(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    raised = event.pop("exc_info", None)
    error = sys.exc_info()[1] if raised is True else raised[1] if isinstance(raised, tuple) else raised
    if isinstance(error, BaseException):
        event.setdefault("error", " ".join(f"{type(error).__name__}: {error}".split()))
    return event


def _complete_commands(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if isinstance(event.get("error"), str):
        event["error"] = completed_commands(event["error"])
    return event
