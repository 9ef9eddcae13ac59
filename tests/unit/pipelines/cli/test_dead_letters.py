"""Claim: the commands about dead letters show and do what was asked. Method: the kernel in memory, and their output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import pytest
import typer

from pipelines.cli.clients import dead_letters
from pipelines.cli.clients.dead_letters import run_list, run_purge, run_redrive, run_show
from pipelines.cli.target import Target
from popstream import Invalid, LetterSelection
from popstream.kafka_connection import KafkaConnection
from popstream.testing import MemoryJob

TARGET = Target(KafkaConnection("kafka:9092"), "popstream")
ALL = LetterSelection()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryJob]:
    """Three letters: of text, of bytes, and one without its message."""
    with MemoryJob() as job:
        job.write("orders", 0, [b"latte", b"\xff\x00", b"gone"], headers=[("trace", b"\x1b[2J")])
        with job.consumer("baristas") as consumer:
            messages = consumer.pop("orders").messages
            job.payloads.deleted.add(("orders", 0, 2))
            consumer.reject(messages, "no milk")
        monkeypatch.setattr(dead_letters, "_opened", lambda _: job.dead_letters())
        yield job


def redrive(selection: LetterSelection = ALL, *, dry_run: bool = False) -> None:
    run_redrive(TARGET, selection, to="group", limit=None, comment="", dry_run=dry_run)


def purge(*, yes: bool = False, dry_run: bool = False, erase: bool = False) -> None:
    run_purge(TARGET, ALL, limit=None, comment="stale", erase=erase, dry_run=dry_run, yes=yes)


@pytest.mark.usefixtures("job")
def test_the_list_names_letters_and_says_how_many_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    run_list(TARGET, ALL, limit=2, handled=False, as_json=False)
    shown = capsys.readouterr().out
    assert ("0/0" in shown, "0/1" in shown, "0/2" in shown) == (True, True, False)
    assert "orders/0 offset 0" in shown
    assert "the oldest 2 of 3; --limit shows more" in shown
    run_list(TARGET, LetterSelection(group="till"), limit=0, handled=False, as_json=False)
    assert capsys.readouterr().out == "no dead letters to show\n"


def test_the_list_shows_what_became_of_letters(job: MemoryJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.dead_letters().redrive(LetterSelection(places=frozenset([(0, 0)])), by="anna@bar", comment="milk")
    job.dead_letters().purge(LetterSelection(places=frozenset([(0, 1)])), by="ben@bar")
    run_list(TARGET, ALL, limit=0, handled=True, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "redriven to the group 1970-01-01" in shown
    assert "anna@bar: milk" in shown
    assert "purged 1970-01-01" in shown
    run_list(TARGET, ALL, limit=0, handled=True, as_json=True)
    found = msgspec.json.decode(capsys.readouterr().out)
    actions = [one["handling"] and one["handling"]["action"] for one in found]
    assert ([one["letter"] for one in found], actions) == (["0/0", "0/1", "0/2"], ["redriven", "purged", None])


@pytest.mark.usefixtures("job")
def test_a_letter_is_shown_whole_and_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run_show(TARGET, (0, 0), bytes_max=3, as_json=False)
    shown = capsys.readouterr().out
    assert "value (5 bytes): lat ... 2 bytes more" in shown
    assert ("\x1b" in shown, "header trace: \\x1b[2 ... 1 byte more" in shown) == (False, True)
    assert "partition" in shown
    run_show(TARGET, (0, 1), bytes_max=9, as_json=False)
    assert "value (2 bytes): 0x ff 00\n" in capsys.readouterr().out
    run_show(TARGET, (0, 2), bytes_max=9, as_json=False)
    assert "the message had left the log" in capsys.readouterr().out
    run_show(TARGET, (0, 1), bytes_max=9, as_json=True)
    found = msgspec.json.decode(capsys.readouterr().out)
    assert (found["letter"], found["value_base64"], found["headers"]) == ("0/1", "/wA=", [["trace", "\x1b[2J"]])


def test_a_redrive_that_leaves_letters_says_which_and_has_exit_code_1(
    job: MemoryJob, capsys: pytest.CaptureFixture[str]
) -> None:
    for dry_run, done in ((True, "would be redriven"), (False, "redriven")):
        with pytest.raises(typer.Exit) as ended:
            redrive(dry_run=dry_run)
        assert ended.value.exit_code == 1
        first, second = capsys.readouterr().err.splitlines()
        assert first == f"popstream: 2 dead letters {done} to their groups, as 2 messages"
        assert second.startswith("popstream: 0/2 stays: the message had left the log")
    assert [letter.place for letter in job.dead_letters().list()] == ["0/2"]


def test_an_interrupted_redrive_says_that_it_goes_on(
    job: MemoryJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = job.dead_letters()

    def interrupted(*_: object, **options: object) -> None:
        report = options["on_progress"]
        assert callable(report)
        report(SimpleNamespace(letters=500))
        raise KeyboardInterrupt

    monkeypatch.setattr(opened, "redrive", interrupted)
    monkeypatch.setattr(dead_letters, "_opened", lambda _: opened)
    with pytest.raises(KeyboardInterrupt):
        redrive()
    assert capsys.readouterr().err == "popstream: stopped after 500 dead letters; the same command goes on\n"


@pytest.mark.usefixtures("job")
def test_a_dry_run_says_what_would_be_erased(capsys: pytest.CaptureFixture[str]) -> None:
    purge(dry_run=True, erase=True)
    assert capsys.readouterr().err.splitlines() == [
        "popstream: 3 dead letters would be purged",
        "popstream: 3 offsets of the dead-letter topic would be deleted",
    ]


def test_an_erasure_says_which_letters_stay_and_behind_which(
    job: MemoryJob, capsys: pytest.CaptureFixture[str]
) -> None:
    def purge_and_erase(places: set[tuple[int, int]], *, dry_run: bool = False) -> list[str]:
        selection = LetterSelection(places=frozenset(places))
        run_purge(TARGET, selection, limit=None, comment="", erase=True, dry_run=dry_run, yes=True)
        return [line.removeprefix("popstream: ") for line in capsys.readouterr().err.splitlines()]

    why = "stays behind 0/0, which nobody has handled: redrive that if it is wanted, then"
    command = "`popstream dead purge 0/0 --erase`"
    assert purge_and_erase({(0, 2)}, dry_run=True) == [
        "1 dead letter would be purged",
        "0 offsets of the dead-letter topic would be deleted",
        f"0/2 is handled and {why} {command}",
    ]
    assert purge_and_erase({(0, 1), (0, 2)}) == [
        "2 dead letters purged",
        "0 offsets of the dead-letter topic deleted",
        f"2 letters from 0/1 to 0/2 are handled and {why.replace('stays', 'stay')} {command}",
    ]
    job.dead_letters().redrive(LetterSelection(places=frozenset({(0, 0)})))
    assert purge_and_erase({(0, 0)}) == ["0 dead letters purged", "3 offsets of the dead-letter topic deleted"]


def test_only_the_letters_of_the_question_are_purged(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody thinks about it, another one handles one of them, and two come."""

    def think(*_: object, **__: object) -> bool:
        job.dead_letters().purge(LetterSelection(places=frozenset([(0, 1)])))
        job.write("orders", 0, [b"4", b"5"])
        with job.consumer("baristas") as consumer:
            consumer.reject(consumer.pop("orders").messages, "no milk")
        return True

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(typer, "confirm", think)
    purge()
    assert [letter.place for letter in job.dead_letters().list()] == ["0/3", "0/4"]


def test_nothing_is_purged_that_was_not_meant(
    job: MemoryJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal nobody can be asked; on one, the answer counts."""
    with pytest.raises(Invalid, match=r"3 dead letters will be marked as handled, not sent: pass --yes"):
        purge()
    purge(dry_run=True)
    assert "3 dead letters would be purged" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    answers = iter([False, True])
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: next(answers))
    with pytest.raises(typer.Exit) as ended:
        purge(erase=True)
    assert ended.value.exit_code == 1
    assert len([*job.dead_letters().list()]) == 3
    purge(erase=True)
    assert "3 offsets of the dead-letter topic deleted" in capsys.readouterr().err
    assert [*job.dead_letters().list(handled=True)] == []
