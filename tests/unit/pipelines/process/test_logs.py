"""The job's log: JSON lines from every logger, in files of bounded size."""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from pipelines.job_settings import LogFormat
from pipelines.process.logs import configure_logs, rotate_in_place
from tests.support.logging_state import logging_as_it_was


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with logging_as_it_was():
        yield


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]


def test_every_logger_writes_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "new" / "job.log"
    configure_logs("info", file)
    ours = structlog.get_logger("pipelines.process.job")
    ours.info("query_started", decided={0: 7})
    ours.debug("not_asked_for")
    logging.getLogger("library").warning("over %d\nlines", 2)
    logging.getLogger("library").info("not asked for")
    logging.getLogger("kafka").error("reconnects")
    ours.error("failed", exc_info=OSError(5, "no disk"))
    started, library, failed = lines_of(file)
    assert started.pop("timestamp").endswith("Z")
    assert started == {
        "logger": "pipelines.process.job",
        "level": "info",
        "event": "query_started",
        "decided": {"0": 7},
    }
    assert (library["logger"], library["level"], library["event"]) == ("library", "warning", "over 2\nlines")
    assert failed["exception"] == "OSError: [Errno 5] no disk"


def test_events_below_the_level_are_left_out(tmp_path: Path) -> None:
    configure_logs("error", tmp_path / "job.log")
    structlog.get_logger("pipelines.process.job").warning("kafka_away")
    structlog.get_logger("pipelines.process.job").error("job_failed")
    assert [line["event"] for line in lines_of(tmp_path / "job.log")] == ["job_failed"]


def test_a_full_disk_is_one_line_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.log"
    file.symlink_to("/dev/full")
    configure_logs("info", file)
    for number in range(30):
        structlog.get_logger("pipelines.process.job").error("event", number=number)
    logging.getLogger("library").warning("%d", "not a number")
    line = f"popstream: {file} cannot be written: No space left on device\n"
    assert capsys.readouterr().err == line
    file.unlink()
    handler = logging.getLogger().handlers[0]
    handler.close()
    structlog.get_logger("pipelines.process.job").error("room again")
    assert [each["event"] for each in lines_of(file)] == ["room again"]
    file.unlink()
    file.symlink_to("/dev/full")
    handler.close()
    structlog.get_logger("pipelines.process.job").error("full again")
    assert capsys.readouterr().err == line


def test_a_full_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.process.logs.FILE_BYTES_MAX", 2_000)
    file = tmp_path / "job.log"
    configure_logs("info", file)
    for number in range(100):
        structlog.get_logger("pipelines.process.job").info("event", number=number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.log", "job.log.1"]
    numbers = [line["number"] for line in lines_of(tmp_path / "job.log.1") + lines_of(file)]
    assert numbers == list(range(numbers[0], 100))
    assert file.stat().st_size <= 2_000


def test_a_file_that_a_running_process_writes_is_rotated(tmp_path: Path) -> None:
    """As the JVM has its log: open for appending from its start to its end."""
    file = tmp_path / "jvm.log"
    older = tmp_path / "jvm.log.1"
    code = "for line in sys.stdin: print(line.strip() * 100, flush=True); print('.', file=sys.stderr, flush=True)"
    with (
        file.open("ab") as output,
        subprocess.Popen(
            [sys.executable, "-c", f"import sys\n{code}"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        ) as writer,
    ):
        assert writer.stdin is not None
        assert writer.stderr is not None
        for number in range(10, 40):
            writer.stdin.write(f"{number}\n")
            writer.stdin.flush()
            assert writer.stderr.readline() == ".\n"
            rotate_in_place(file, 1_000)
            assert file.stat().st_size <= 1_000
            assert not older.exists() or older.stat().st_size <= 1_000
        writer.stdin.close()
    # No zero bytes either, as a writer that remembers its position leaves them in a file that was truncated.
    kept = older.read_text() + file.read_text()
    assert kept == "".join(f"{str(number) * 100}\n" for number in range(10, 40))[-len(kept) :]
    assert len(kept) >= 1_000


def test_of_a_much_larger_file_the_end_is_kept(tmp_path: Path) -> None:
    """What was written at once, before anybody looked."""
    file = tmp_path / "jvm.log"
    file.write_bytes(bytes(range(100)))
    rotate_in_place(file, 30)
    assert file.read_bytes() == b""
    assert (tmp_path / "jvm.log.1").read_bytes() == bytes(range(70, 100))
    rotate_in_place(tmp_path / "none.log", 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jvm.log", "jvm.log.1"]


def test_without_a_file_it_is_text_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info")
    structlog.get_logger("pipelines.process.job").info("query_started", decided=7)
    said = capsys.readouterr()
    assert said.out == ""
    assert "[info     ] query_started" in said.err
    assert "decided=7" in said.err


@pytest.mark.parametrize(
    ("log_format", "begins"), [(LogFormat.AUTO, b"{"), (LogFormat.JSON, b"{"), (LogFormat.TEXT, b"20")]
)
def test_the_format_of_a_file_is_a_setting(tmp_path: Path, log_format: LogFormat, begins: bytes) -> None:
    configure_logs("info", tmp_path / "job.log", log_format)
    structlog.get_logger("pipelines.process.job").error("job_failed", exc_info=OSError(5, "no disk"))
    written = (tmp_path / "job.log").read_bytes()
    assert written.startswith(begins)
    assert b"job_failed" in written
    assert b"OSError: [Errno 5] no disk" in written
    assert b"\x1b" not in written, "a file has no colours"


def test_standard_error_can_have_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", log_format=LogFormat.JSON)
    structlog.get_logger("pipelines.process.job").info("query_started", decided=7)
    assert msgspec.json.decode(capsys.readouterr().err)["decided"] == 7


def test_of_an_error_that_a_command_logs_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("warning", tracebacks=False)
    try:
        raise OSError(5, "no\ndisk")  # noqa: TRY301 - the traceback is to be left out
    except OSError:
        logging.getLogger("library").exception("while closing")
        structlog.get_logger("pipelines.process.jvm").exception("shutdown_failed")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all("OSError: [Errno 5] no disk" in line for line in lines)


def test_an_error_that_ends_a_thread_goes_to_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", tmp_path / "job.log")
    thread = threading.Thread(target=[].pop, name="builder")
    thread.start()
    thread.join()
    (line,) = lines_of(tmp_path / "job.log")
    assert (line["event"], line["thread"]) == ("thread_failed", "builder")
    assert "IndexError: pop from empty list" in line["exception"]
    assert capsys.readouterr().err == ""
