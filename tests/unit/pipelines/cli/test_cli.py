"""The command line without a job: refusals, their messages and exit codes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import pytest
import structlog
import typer
from kafka.errors import MessageSizeTooLargeError
from kafka.future import Future as KafkaFuture
from rich.console import Console
from typer.testing import CliRunner

from broker_state.consume_queue import Unit
from broker_state.store.rocks_store import RocksStore
from checkpoints.layout import JobFolder
from checkpoints.ownership import Ownership
from checkpoints.prefix_owner import Owner
from checkpoints.snapshot_store import Snapshot
from pipelines.build_consume_queue.queue_view import FoundUnit
from pipelines.cli.app import app, main
from pipelines.cli.clients import send_and_consume
from pipelines.cli.clients.ops import EXAMPLES, read_operations
from pipelines.cli.clients.send_and_consume import printable, run_send
from pipelines.cli.commands_reference import commands_markdown
from pipelines.cli.exits import Group, interrupt
from pipelines.cli.options import load_settings
from pipelines.cli.state.queue import unit_text
from pipelines.cli.state.status import _print as print_status
from pipelines.cli.state.status import _require_found
from pipelines.cli.tables.spark_query import require_reading
from pipelines.cli.target import Target
from pipelines.control.answers import JobAnswers
from pipelines.control.client import ask
from pipelines.control.job_file import JobFile
from pipelines.control.messages import JobReport, OwnerView, SnapshotRequest, Status, StatusRequest
from pipelines.control.metrics import Metrics, Totals
from pipelines.control.server import ControlServer
from pipelines.job_settings import OTHER_VARIABLES, unknown_variables
from pipelines.process import preflight
from pipelines.process.preflight import require_ready
from pipelines.process.signals import held_signals, interrupted_by_signals
from pipelines.settings_reference import settings_markdown
from popstream import Message, OutgoingMessage, Producer, ReceiptHandle
from popstream.kafka_connection import KafkaConnection
from popstream.testing._memory_kafka import MemoryKafka
from popstream.testing.memory_job import MemoryJob
from popstream.wire.base_errors import Corrupt, Fenced, Invalid, PopstreamError, Unavailable
from popstream.wire.command import COMMAND_TYPES
from popstream.wire.signing import AdminKey, KeyRing, SigningKey
from tests.support.delta_files import create_table
from tests.support.logging_state import logging_as_it_was
from tests.support.module_time import replace_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.testing import Result

ROOT = Path(__file__).parents[4]
COMMANDS = ("up", "demo", "ops", "send", "consume", "status", "query", "check", "group")
POP = '{"type":"pop","topic":"orders","queue_id":0,"group":"g","max_messages":1,"invisible_time_ms":1000}'


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use neither settings of the machine nor the folder of the project."""
    for name in [name for name in os.environ if name.startswith("POPSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=text, env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def test_the_document_of_the_settings_is_current() -> None:
    document = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert document == settings_markdown(), "run: python -m pipelines.settings_reference > docs/settings.md"


def test_the_document_of_the_commands_is_current() -> None:
    document = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert document == commands_markdown(), "run: python -m pipelines.cli.commands_reference > docs/commands.md"


@pytest.mark.parametrize("name", ["up", "send", "query", "perf", "group policy", "dead redrive", "migrate to-cluster"])
def test_the_document_of_the_commands_has_the_options_that_the_help_has(name: str) -> None:
    help_text = run(*name.split(), "--help").stdout
    listed = {option for option in re.findall(r"^│ \*? *(--[a-z-]+)", help_text, re.MULTILINE) if option != "--help"}
    section = commands_markdown().split(f"\n## `popstream {name}`\n", 1)[1].split("\n## ", 1)[0]
    own = re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE)
    shared = re.findall(r"`(--[a-z-]+)`", section.split("(#options-of-many-commands)", 1)[1])
    assert sorted(own + shared) == sorted(listed)


def test_help_names_every_command_and_the_exit_codes() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert [name for name in COMMANDS if name not in result.stdout] == []
    assert "3 a service does not respond" in " ".join(result.stdout.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--ops-partitions", "0"), "ops_partitions: Input should be greater than or equal to 1"),
        (("up", "--no-such-option"), "No such option"),
        (("up", "--settings", "missing.toml"), "there is no settings file missing.toml"),
        (("consume", "orders"), "Missing option"),
        (("consume", "orders", "--group", "g", "--invisible-time", "30"), "'30' is not a duration"),
        (("ops", "--example", "pap"), "unknown type 'pap': use one of declare, policy"),
        (("query", "drop table operations"), "only queries can be run here"),
        (("query", "select 1"), "there are no tables in var/job/delta"),
        (("query", "select 1", "--at", "99999999999999999"), "is not a time of the years 1 to 9999"),
        (("query", "select 1", "--at", "²"), "'²' is not a time"),
        (("report", "--since", "99999999999h"), "is not a time of the years 1 to 9999"),
        (("report", "--since", "9" * 400 + "h"), "is too long a time"),
        (("status", "--ready", "--json"), "--ready cannot be used with --json"),
        (
            ("queue", "orders", "--queue", "0", "--rebuild-from", "0", "--json"),
            "--rebuild-from cannot be used with --json",
        ),
        (("query", "select 1", "--csv", "--json"), "choose one of --csv and --json"),
    ],
)
def test_wrong_options_are_refused_in_clear_words(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no operation is given"),
        ("{nope", "line 1 is not JSON"),
        ('{"type":"pap"}', "operation 1: unknown type 'pap': use one of declare, policy"),
        ('{"type":[]}', "operation 1: unknown type []: use one of declare, policy"),
        ("[1]", "operation 1: "),
        (POP.replace('"group":"g",', ""), "missing required field `group`; `popstream ops --example pop` shows"),
        (POP.replace("orders", "o").replace("}", ',"x":1}'), "unknown field `x`"),
        (f"{POP}\n{POP.replace('pop', 'pap')}", "operation 2: unknown type 'pap'"),
    ],
)
def test_invalid_operations_are_refused_before_anything_is_sent(text: str, words: str) -> None:
    result = run("ops", "-", text=text)
    assert result.exit_code == 2
    assert words in result.stderr


def test_operations_that_are_not_utf8_are_refused() -> None:
    result = CliRunner().invoke(app, ["ops", "-"], input=b'{"type":"\xff"}')
    assert (result.exit_code, "not UTF-8: invalid start byte at byte 9" in result.stderr) == (2, True)
    result = run("ops", '{"type":"\udcff"}')  # as Python reads an argument with this byte
    assert (result.exit_code, "not UTF-8: invalid start byte at byte 9" in result.stderr) == (2, True)


def test_every_type_has_an_example_that_is_an_operation() -> None:
    assert EXAMPLES.keys() == COMMAND_TYPES.keys()
    shown = run("ops", "--example", "all").stdout
    assert [type(command) for command in read_operations(shown)] == [COMMAND_TYPES[name] for name in EXAMPLES]


def test_operations_are_one_object_a_list_or_lines() -> None:
    assert len(read_operations(POP)) == 1
    assert len(read_operations(f"[{POP},{POP}]")) == 2
    assert len(read_operations(f"{POP}\n\n{POP}\n")) == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [(Invalid("x"), 2), (Fenced("x"), 2), (Unavailable("x"), 3), (Corrupt("x"), 4), (PopstreamError("x"), 1)],
)
def test_each_kind_of_error_has_its_exit_code_and_one_line(error: PopstreamError, code: int) -> None:
    failing = typer.Typer(cls=Group)

    @failing.command()
    def fail() -> None:
        raise error

    @failing.command()
    def other() -> None:
        pass

    result = CliRunner().invoke(failing, ["fail"])
    assert (result.exit_code, result.stderr) == (code, "popstream: x\n")


@pytest.mark.parametrize(
    ("program", "output", "code", "said"),
    [
        ("print('1 of 2')", "gone", 141, ""),
        ("standard_output().print('1 of 2')", "gone", 141, ""),
        ("print('1 of 2')", "/dev/full", 1, "the output is not complete"),
        ("standard_output().print('1 of 2')", "/dev/full", 1, "the output is not complete"),
    ],
)
def test_the_little_that_is_still_buffered_at_the_end_counts_as_well(
    program: str, output: str, code: int, said: str
) -> None:
    text = f"""
import typer
from pipelines.cli.exits import Group
from pipelines.cli.printing import standard_output
app = typer.Typer(cls=Group)
@app.command()
def verify():
    {program}
@app.command()
def other(): pass
app(["verify"])
"""
    reader, writer = os.pipe()
    os.close(reader)
    if output != "gone":
        os.close(writer)
        writer = os.open(output, os.O_WRONLY)
    unbuffered = {"PYTHONUNBUFFERED": ""}
    ended = subprocess.run(
        [sys.executable, "-c", text],
        check=False,
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, **unbuffered},
        text=True,
    )
    os.close(writer)
    assert ended.returncode == code
    assert said in ended.stderr
    assert "Exception" not in ended.stderr


@pytest.mark.parametrize(("stream", "code"), [("stdout", 141), ("stderr", 4)])
def test_a_reader_that_has_gone_is_no_success(stream: str, code: int) -> None:
    """Of what is printed; messages that nobody reads end nothing."""
    program = f"""
import sys, typer
from pipelines.cli.exits import Group, say
from popstream.wire.base_errors import Corrupt
app = typer.Typer(cls=Group)
@app.command()
def verify():
    for number in range(100_000):
        say("100 of 1,000") if "{stream}" == "stderr" else print("100 of 1,000")
    raise Corrupt("8 of 8 rows differ")
@app.command()
def other(): pass
app(["verify"])
"""
    reader, writer = os.pipe()
    os.close(reader)
    pipe: dict[str, int] = {stream: writer}
    ended = subprocess.run([sys.executable, "-c", program], check=False, **pipe)  # type: ignore[call-overload]
    os.close(writer)
    assert ended.returncode == code


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "stopped by Ctrl-C"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
def test_a_stopped_command_ends_as_shells_expect_and_says_what_it_did(number: int, code: int, said: str) -> None:
    stopped = typer.Typer(cls=Group)

    @stopped.command()
    def stop() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt as interrupted:
            interrupted.add_note("2 of 3 are done")
            raise

    @stopped.command()
    def other() -> None:
        pass

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
    try:
        with logging_as_it_was(), pytest.MonkeyPatch.context() as patched:
            patched.setattr("pipelines.cli.app.app", lambda: None)
            main()  # installs the handler of SIGTERM
        result = CliRunner().invoke(stopped, ["stop"])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert (result.exit_code, result.stderr) == (code, f"popstream: {said}: 2 of 3 are done\n")


def test_a_query_that_is_stopped_says_that_it_printed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.cli.tables.query._result", interrupted)
    result = run("query", "select 1")
    assert (result.exit_code, result.stderr) == (130, "popstream: stopped by Ctrl-C: no row was printed\n")


@pytest.mark.parametrize("command", [("ops", POP), ("send", "orders"), ("consume", "orders", "--group", "g")])
def test_without_a_job_a_command_says_where_it_looked(command: tuple[str, ...]) -> None:
    result = run(*command, "--folder", "elsewhere")
    assert result.exit_code == 3
    start = f"`popstream up --folder {Path('elsewhere').absolute()}`"
    assert result.stderr.startswith(f"popstream: no job runs in elsewhere: start one with {start}")


def test_status_says_that_no_job_ever_ran() -> None:
    result = run("status", "--json")
    assert result.exit_code == 3
    assert "no job runs in var/job, and none ever ran" in result.stderr
    assert result.stdout == ""


def test_status_shows_the_stored_state(tmp_path: Path) -> None:
    RocksStore(tmp_path / "job" / "state").close()
    result = run("status", "--json", "--folder", str(tmp_path / "job"))
    assert result.exit_code == 3
    assert msgspec.json.decode(result.stdout)["running"] is False
    assert "no job runs" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--lane", "nonsense"), "no queue has a lane of a group nonsense: `popstream status --folder "),
        (("--topic", "nonsense"), "there is no queue of a topic nonsense"),
        (("--lane", "g", "--topic", "t"), "no queue of a topic t has a lane of a group g"),
    ],
)
def test_status_of_what_does_not_exist_is_an_error(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    RocksStore(tmp_path / "job" / "state").close()
    result = run("status", *options, "--json", "--folder", str(tmp_path / "job"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_status_of_a_lane_waits_for_a_job_that_is_started_again(tmp_path: Path) -> None:
    status = Status(running=True, folder=str(tmp_path), apply_seq=3, not_ready_reasons=["starting again"])
    _require_found(status, StatusRequest(group="g"))


def test_a_flag_is_shown_without_a_value() -> None:
    for command in (("status",), ("check",), ("up",), ("group", "list"), ("history", "check")):
        text = run(*command, "--help").stdout
        assert "<bool>" not in text
        assert "BOOL" not in text


def test_status_does_not_open_the_state_of_a_job_that_is_starting(tmp_path: Path) -> None:
    with Ownership(JobFolder(tmp_path).lock):
        result = run("status", "--folder", str(tmp_path))
    assert result.exit_code == 3
    assert "is starting or stopping" in result.stderr


def test_options_override_variables_and_these_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "popstream.toml"
    file.write_text('ops_partitions = 7\nresults_partitions = 7\ntopic_prefix = "file"\n')
    monkeypatch.setenv("POPSTREAM_OPS_PARTITIONS", "8")
    monkeypatch.setenv("POPSTREAM_RESULTS_PARTITIONS", "8")
    settings = load_settings(file, ops_partitions=9, topic_prefix=None)
    assert (settings.ops_partitions, settings.results_partitions, settings.topic_prefix) == (9, 8, "file")


def test_all_invalid_settings_are_reported_at_once_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "popstream.toml"
    file.write_text('handle_keys = "very secret"\nsurprise = 1\n')
    monkeypatch.setenv("POPSTREAM_METRICS_PORT", "70000")
    with pytest.raises(Invalid) as caught:
        load_settings(file)
    assert len(caught.value.details) == 3
    assert "metrics_port (from POPSTREAM_METRICS_PORT)" in str(caught.value)
    assert "very secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("log_level", ["debug", "WARNING"], "verbose"),
        ("driver_memory", ["512m", "2G"], "1gb"),
        ("driver_memory", [], "0g"),
    ],
)
def test_what_a_start_would_fail_for_is_refused_before(name: str, good: list[str], bad: str) -> None:
    for value in good:
        assert getattr(load_settings(None, **{name: value}), name) == value
    with pytest.raises(Invalid) as caught:
        load_settings(None, **{name: bad})
    assert name in str(caught.value)


def test_a_folder_with_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        load_settings(None, folder=Path(os.fsdecode(bytes(tmp_path) + b"/d\xff")))
    assert caught.value.details == ("folder: it has bytes that are not UTF-8",)


@pytest.mark.parametrize("arguments", [["queue", "orders", "--key", "\udcff"], ["query", "select '\udcff'"]])
def test_an_argument_that_is_not_utf_8_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    create_table(tmp_path / "job" / "delta", "operations")
    done = CliRunner().invoke(app, [*arguments, "--folder", str(tmp_path / "job")])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)


def test_a_variable_that_is_not_json_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPSTREAM_HANDLE_KEYS", "very secret")
    with pytest.raises(Invalid) as caught:
        load_settings(None)
    assert caught.value.details == ("handle_keys (from POPSTREAM_HANDLE_KEYS): it is not JSON",)


def test_keys_are_read_with_their_ends_and_the_only_one_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "popstream.toml"
    file.write_text(
        'admin_key_active = "2031"\nadmin_keys_since = 2030-01-01T00:00:00Z\n[admin_keys]\n'
        '2030 = { secret = "a secret of 24 characters", until = 2031-01-01T00:00:00 }\n'
        '2031 = "another secret of mine"\n'
    )
    monkeypatch.setenv("POPSTREAM_HANDLE_KEYS", '{"a": "b"}')
    settings = load_settings(file)
    admin = settings.admin_ring
    assert admin is not None
    assert (admin.active, admin.since_ms) == ("2031", 1_893_456_000_000)
    assert admin.keys == {
        "2030": SigningKey(b"a secret of 24 characters", 1_924_992_000_000),
        "2031": SigningKey(b"another secret of mine"),
    }
    assert settings.admin_key == AdminKey("2031", "another secret of mine")
    assert settings.handle_ring == KeyRing.of({"a": b"b"}, "a")
    assert "secret of" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[admin_keys]\na = "too short"\n', "less than 16 bytes"),
        ('[admin_keys]\n"a.b" = "a secret of 24 characters"\n', "admin_keys.a.b"),
        ('[admin_keys]\na = "a secret of 24 characters"\nb = "a secret of 24 characters"\n', "one of the keys a, b"),
        ('admin_key_active = "c"\n[admin_keys]\na = "a secret of 24 characters"\n', "one of the keys a"),
        ('[handle_keys]\na = { secret = "s", until = 2031-01-01T00:00:00Z }\n', "a signs, and cannot have an end"),
        ('[handle_keys]\na = { secrets = "a secret of 24 characters" }\n', "handle_keys.a"),
    ],
)
def test_wrong_keys_are_named_without_their_secrets(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "popstream.toml"
    file.write_text(text)
    with pytest.raises(Invalid, match=said) as caught:
        load_settings(file)
    assert "secret of 24" not in str(caught.value)
    assert "too short" not in str(caught.value)


def test_a_variable_that_means_nothing_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTHER_VARIABLES:
        monkeypatch.setenv(name, "1")
    load_settings(None)
    monkeypatch.setenv("POPSTREAM_OPS_PARTITION", "8")
    monkeypatch.setenv("POPSTREAM_KILLS", "1")
    monkeypatch.setenv("POPSTREAM_METRICS_PORT", "70000")
    with pytest.raises(Invalid) as caught:
        load_settings(None)
    assert caught.value.details[0].startswith("metrics_port (from POPSTREAM_METRICS_PORT): ")
    assert caught.value.details[1:] == (
        "unknown variable POPSTREAM_KILLS: docs/settings.md lists all",
        "unknown variable POPSTREAM_OPS_PARTITION: did you mean POPSTREAM_OPS_PARTITIONS?",
    )


def test_every_variable_that_is_read_is_known() -> None:
    """In code, images and documents; those of tests begin otherwise, for `popstream` would refuse them."""
    folders = ("broker_state", "checkpoints", "connectors", "docker", "docs", "pipelines", "popstream", "scripts")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [ROOT / "Makefile", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix not in {".pyc", ".so"})
    named = set(re.findall(r"\bPOPSTREAM_[A-Z][A-Z_]*[A-Z]\b", text))
    assert {"POPSTREAM_FOLDER", "POPSTREAM_PURE"} <= named
    assert unknown_variables(named - {"POPSTREAM_OPS_PARTITION"}) == [], "of a doctest"


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("folder =")
    with pytest.raises(Invalid, match="is not TOML"):
        load_settings(tmp_path / "x.toml")


def test_preflight_reports_everything_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Invalid) as caught:
            require_ready(tmp_path / "job", tmp_path, with_kafka=True, ports={"--kafka-port": port, "--other": 0})
    text = str(caught.value)
    assert "no java: install" in text
    assert "run `make setup`" in text
    assert f"port {port} is taken: stop the process that listens on it, or choose another --kafka-port" in text


def test_preflight_needs_free_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 29))
    with pytest.raises(Invalid) as caught:
        require_ready(tmp_path / "job", tmp_path, with_kafka=False, ports={})
    assert f"1.5 GiB are free in {tmp_path}, 2 are needed" in str(caught.value)


@pytest.mark.parametrize("reason", [errno.EPERM, errno.EOPNOTSUPP], ids=os.strerror)
@pytest.mark.parametrize("option", ["--folder", "--tables"])
def test_preflight_needs_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, reason: int) -> None:
    """Of the disk of each folder, which need not be there yet."""
    disks = {"--folder": tmp_path / "local", "--tables": tmp_path / "mounted"}
    for disk in disks.values():
        disk.mkdir()
    link = os.link

    def refuse(source: Path, target: Path) -> None:
        if target.parent == disks[option]:
            raise OSError(reason, os.strerror(reason))
        link(source, target)

    def start() -> None:
        tables = disks["--tables"] / "of" / "a"
        require_ready(disks["--folder"] / "job", tmp_path, tables=tables, with_kafka=False, ports={})

    monkeypatch.setattr(preflight, "_java_findings", list)
    monkeypatch.setattr(preflight, "spark_jars", lambda _: [])
    start()
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(Invalid) as caught:
        start()
    assert str(caught.value) == (
        f"{disks[option]} does not support hard links, which table commits and snapshots need"
        f" ({os.strerror(reason)}): choose another {option}"
    )
    assert [file for disk in disks.values() for file in disk.iterdir()] == []


@pytest.mark.parametrize("release", [11, 22])
def test_preflight_refuses_another_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: int) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{release}.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Invalid, match=f"is Java {release}: point JAVA_HOME at one from 17 to 21"):
        require_ready(tmp_path / "job", tmp_path, with_kafka=False, ports={})


@pytest.mark.parametrize("sql", ["delete from operations", "insert into x select 1", "", "set x = 1", "create table x"])
def test_a_statement_that_is_not_a_query_is_refused(sql: str) -> None:
    with pytest.raises(Invalid, match="only queries can be run here"):
        require_reading(sql)


def test_a_message_is_one_line_whatever_it_holds() -> None:
    message = Message(
        topic="orders",
        queue_id=1,
        queue_offset=2,
        handle=ReceiptHandle("1.A"),
        attempt=1,
        key=None,
        value=b"one\ntwo\xff",
        headers=[("h", b"v"), ("empty", None)],
        timestamp_ms=3,
        pop_time_ms=4,
        next_visible_time_ms=5,
    )
    assert printable(message, as_json=False) == r"one\ntwo\xff"
    obeyed = msgspec.structs.replace(message, value=b"a\tb\x1b]0;c\x07")
    assert printable(obeyed, as_json=False) == "a\tb\\x1b]0;c\\x07"
    fields = msgspec.json.decode(printable(message, as_json=True))
    assert (fields["value_base64"], fields["key"], fields["handle"]) == ("b25lCnR3b/8=", None, "1.A")
    assert fields["headers"] == [["h", "v"], ["empty", None]]


def test_every_message_of_a_unit_is_printed_and_none_counts_as_come_again(capsys: pytest.CaptureFixture[str]) -> None:
    job = MemoryJob()
    with Producer("memory", kafka_producer=MemoryKafka(job), job_types=lambda _: "batch") as producer:
        batch = [OutgoingMessage(topic="orders", value=b"%d" % number, queue_id=0, tag="paid") for number in range(5)]
        sent = [future.result(60) for future in producer.send_many(batch)]
    progress = send_and_consume._Progress(0)
    with job.consumer("g") as consumer:
        send_and_consume._consume(consumer, "orders", progress, 60_000, 0, follow=False, ack=False, as_json=True)
    lines = capsys.readouterr().out.splitlines()
    fields = [msgspec.json.decode(line) for line in lines]
    assert [(one["value"], one["queue_offset"], one["inner_index"], one["inner_count"]) for one in fields] == [
        (str(index), 0, index, 5) for index in range(5)
    ]
    assert [(one["message_id"], one["tag"]) for one in fields] == [(result.message_id, "paid") for result in sent]


@pytest.mark.parametrize(
    ("options", "deliver_at_ms"),
    [
        ((), None),
        (("--deliver-at", "1893456000000"), 1_893_456_000_000),
        (("--deliver-at", "2030-01-01T01:00:00+01:00"), 1_893_456_000_000),
        (("--delay", "1.5m"), 1_000_090_000),
    ],
)
def test_send_says_when_to_deliver(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], deliver_at_ms: int | None
) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr("pipelines.cli.target.find_target", lambda _options: None)
    monkeypatch.setattr(send_and_consume, "run_send", lambda *_, **given: asked.update(given))
    replace_time(monkeypatch, "pipelines.cli.clients.message_commands", time=lambda: 1_000_000.0)
    assert run("send", "orders", *options).exit_code == 0
    assert asked["deliver_at_ms"] == deliver_at_ms


class FailsAtThree(MemoryKafka):
    """Refuses the third message."""

    def send(self, topic: str, **record: Any) -> KafkaFuture:
        if record["value"] == b"3":
            raise MessageSizeTooLargeError
        return super().send(topic, **record)


def test_a_send_that_fails_says_how_many_messages_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(send_and_consume, "require_topic", lambda *_: None)
    monkeypatch.setattr(send_and_consume, "UNCONFIRMED_MAX", 2)
    job = MemoryJob()
    kafka = FailsAtThree(job, partitions=1)
    monkeypatch.setattr(
        send_and_consume,
        "Producer",
        lambda **_: Producer("memory", kafka_producer=kafka, job_types=lambda _: None, auto_batch=False),
    )
    (tmp_path / "lines").write_bytes(b"1\n2\n3\n")
    target = Target(KafkaConnection("kafka:9092"), "popstream")
    with pytest.raises(Invalid):
        run_send(target, "orders", tmp_path / "lines", queue_id=0, tag=None, deliver_at_ms=None, create=0)
    assert capsys.readouterr().err == "popstream: of 3 messages 2 are known to be in orders\n"


def test_send_takes_one_time_of_delivery() -> None:
    result = run("send", "orders", "--delay", "1s", "--deliver-at", "2030-01-01")
    assert result.exit_code == 2
    assert "--deliver-at or --delay, not both" in result.stderr


def test_a_unit_is_shown_with_its_time_of_delivery() -> None:
    unit = Unit(queue_offset=7, size_bytes=3, store_time_ms=0, message_base=7, deliver_at_ms=1_893_456_000_000)
    shown = unit_text(FoundUnit("at or after the offset", unit))
    assert shown.endswith("stored 1970-01-01 00:00:00Z, to be delivered at 2030-01-01 00:00:00Z")
    far = msgspec.structs.replace(unit, deliver_at_ms=10**15 - 1)
    assert "to be delivered at 999999999999999 ms since 1970" in unit_text(FoundUnit("at or after the offset", far))
    repeated = msgspec.structs.replace(unit, duplicate_of=1_234)
    assert unit_text(FoundUnit("with the key", repeated)).endswith(", a duplicate of offset 1,234, which no group gets")
    now = msgspec.structs.replace(unit, deliver_at_ms=0)
    assert "delivered" not in unit_text(FoundUnit("at or after the offset", now))


class StoredJob:
    """A job that is only its state and its report."""

    builder = None
    lane_watch = None
    connection = KafkaConnection("kafka:9092")

    def __init__(self, root: Path) -> None:
        self.folder = JobFolder(root)
        self.store = RocksStore(root / "state")

    def report(self) -> JobReport:
        return JobReport(
            folder=str(self.folder.root),
            apply_seq=5,
            delta_seq=4,
            outbox_bytes=9,
            ops_lag=3,
            totals=Totals(operations=7),
            not_ready_reasons=["Delta is away"],
            quarantined=1,
            snapshot_failure="no room",
            damage=["state/000009.sst is damaged"],
        )

    def take_snapshot(self) -> Snapshot:
        message = "state/000009.sst is damaged"
        raise Corrupt(message)


@pytest.fixture(params=["socket", "port"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ControlServer]:
    """A control server; with a folder whose socket path is too long for one."""
    root = tmp_path if request.param == "socket" else tmp_path / ("x" * 120)
    root.mkdir(exist_ok=True)
    job = StoredJob(root)
    with ControlServer(JobAnswers(job, Metrics()), root) as started:
        assert (request.param == "socket") == started.address.startswith("/")
        yield started
    job.store.close()


def job_file_of(server: ControlServer, token: str) -> JobFile:
    return JobFile(
        pid=1, bootstrap_servers="", prefix="", folder="", address=server.address, token=token, started_at=0.0
    )


def test_the_job_reports_its_status_over_the_control_socket(server: ControlServer) -> None:
    status = ask(job_file_of(server, server.token), StatusRequest(), Status)
    assert (status.running, status.apply_seq, status.delta_seq, status.outbox_bytes) == (True, 5, 4, 9)
    assert status.ops_lag == 3
    assert status.totals == Totals(operations=7)
    assert (status.not_ready_reasons, status.quarantined) == (["Delta is away"], 1)
    assert (status.snapshot, status.snapshot_failure) == (None, "no room")
    assert status.damage == ["state/000009.sst is damaged"]


def test_a_damaged_state_is_reported_as_such_to_a_command(server: ControlServer) -> None:
    with pytest.raises(Corrupt, match=r"^state/000009\.sst is damaged$"):
        ask(job_file_of(server, server.token), SnapshotRequest(), Snapshot)


def test_between_two_jobs_the_server_reports_the_reason(server: ControlServer) -> None:
    job = job_file_of(server, server.token)
    answers = server._answers
    answers.detach("Kafka is away")
    status = ask(job, StatusRequest(), Status)
    assert (status.running, status.apply_seq, status.not_ready_reasons) == (True, 5, ["Kafka is away"])
    with pytest.raises(Unavailable, match="Kafka is away"):
        ask(job, SnapshotRequest(), Snapshot)
    answers.attach(answers.job)
    assert ask(job, StatusRequest(), Status).not_ready_reasons == ["Delta is away"]


def test_every_reason_for_not_being_ready_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status(
        running=True, folder="f", apply_seq=1, ops_lag=9, ops_overdue=4, not_ready_reasons=["no Delta", "no room"]
    )
    print_status(Console(width=200), status)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["not", "ready", "no", "Delta"] in lines
    assert ["not", "ready", "2", "no", "room"] in lines
    assert any(line[:4] == ["at", "risk", "4", "of"] for line in lines)


@pytest.mark.parametrize("form", ["compiled", "pure"])
def test_status_names_the_form_of_the_kernel(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = Status(running=True, pid=7, up_s=61, folder="/job", apply_seq=3, prefix="shop", kernel_form=form)
    print_status(Console(width=240), status)
    assert f"process 7, up 0:01:01, prefix shop, kernel {form}" in capsys.readouterr().out


def test_status_shows_the_owner_and_whom_it_has_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    record = Owner(
        session="s",
        term=4,
        state_epoch="0123456789abcdef",
        has_decided=True,
        ops_topic_id="t",
        place="p",
        host="host-b",
        pid=7,
        folder="/job",
        since_ms=1_700_000_000_000,
        took_over_from="process 3 on host-a, folder /old, since 2023-11-01T00:00:00Z",
    )
    owner = OwnerView.of("shop", record)
    print_status(Console(width=240), Status(running=True, pid=7, folder="/job", apply_seq=3, owner=owner))
    shown = "owner    state 01234567 on host-b since 2023-11-14 22:13:20Z, term 4, taken over from process 3 on host-a"
    assert shown in capsys.readouterr().out
    fresh = OwnerView.of("shop", msgspec.structs.replace(record, has_decided=False))
    assert fresh.state == "", "the epoch is that of the owner before"


def test_a_command_does_not_log_to_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = structlog.get_logger("pipelines.apply_ops.delta_flush")
    monkeypatch.setattr("pipelines.cli.app.app", lambda: (log.info("flushed"), log.warning("odd"), print("{}")))
    before = signal.getsignal(signal.SIGTERM)
    try:
        with logging_as_it_was():
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    said = capsys.readouterr()
    assert said.out == "{}\n"
    assert "odd" in said.err
    assert "flushed" not in said.err


def test_a_request_without_the_token_is_refused(server: ControlServer) -> None:
    with pytest.raises(Invalid, match="wrong token"):
        ask(job_file_of(server, "guess"), StatusRequest(), Status)
    assert b"unreadable request" in server.answer(b"{nope\n")


def test_a_job_that_has_ended_is_unavailable(tmp_path: Path) -> None:
    job = JobFile(
        pid=7, bootstrap_servers="", prefix="", folder="", address=str(tmp_path / "s"), token="", started_at=0
    )
    with pytest.raises(Unavailable, match="the job of process 7 does not answer"):
        ask(job, StatusRequest(), Status)


def test_only_its_user_can_read_the_job_file(tmp_path: Path) -> None:
    job = JobFile(pid=1, bootstrap_servers="a", prefix="b", folder="c", address="d", token="", started_at=1.0)
    job.write(tmp_path / "job.json")
    assert stat.S_IMODE((tmp_path / "job.json").stat().st_mode) == 0o600
    assert JobFile.read(tmp_path / "job.json") == job
    (tmp_path / "job.json").write_text("{")
    assert JobFile.read(tmp_path / "job.json") is None


def test_a_signal_ends_a_query_that_runs_without_python() -> None:
    connection = duckdb.connect()
    before = signal.signal(signal.SIGTERM, interrupt)
    sender = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_by_signals(connection.interrupt):  # noqa: PT012 - both raise
            sender.start()
            connection.execute("SELECT sum(a.range * b.range) FROM range(10_000_000_000) a, range(10_000) b").fetchall()
    finally:
        sender.join()
        signal.signal(signal.SIGTERM, before)
        connection.close()
    assert [thread.name for thread in threading.enumerate() if thread.name == "interrupt"] == []


def test_a_signal_while_spark_is_launched_takes_effect_afterwards() -> None:
    reached = False
    # A shell starts background jobs with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), held_signals():  # noqa: PT012 - the point is how far it gets
            signal.raise_signal(signal.SIGINT)
            reached = True
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached
