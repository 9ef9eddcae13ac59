"""`popstream dead`: list dead letters, show one, redrive and purge them."""

import sys
import time
from collections.abc import Collection, Mapping, Sequence

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines.build_consume_queue.queue_view import ConsumeQueueView, QueueRequest
from pipelines.cli.control_characters import escape_controls
from pipelines.cli.exits import Exit, say
from pipelines.cli.printing import counted, print_facts, standard_output
from pipelines.cli.state.queue import unit_text
from pipelines.cli.target import Target
from pipelines.control.client import ask
from pipelines.control.letter_facts import LetterContent, LetterFacts
from pipelines.times import utc_text
from popstream import DeadLetters, Invalid, Letter, LetterHandling, LetterSelection, LettersReport, PopstreamError
from popstream.wire.command import RedriveTarget

__all__ = ["run_list", "run_purge", "run_redrive", "run_show"]

PROGRESS_S = 2.0
LEFT_SHOWN = 5
HANDLER = "handler: "


def run_list(target: Target, selection: LetterSelection, *, limit: int, handled: bool, as_json: bool) -> None:
    """Print letters, oldest first.

    Raises:
        Invalid: The prefix has no dead letters.
        Unavailable: Kafka does not answer.
    """
    shown: list[Letter] = []
    count = 0
    with _opened(target) as dead_letters:
        for letter in dead_letters.list(selection, handled=handled):
            count += 1
            if count <= limit or not limit:
                shown.append(msgspec.structs.replace(letter, value=None))
    if as_json:
        print(msgspec.json.encode([LetterFacts.of(letter) for letter in shown]).decode())
        return
    console = standard_output()
    if shown:
        _print_table(console, shown, handled=handled)
    else:
        console.print("no dead letters to show")
    if count > len(shown):
        console.print(f"the oldest {len(shown):,} of {count:,}; --limit shows more", style="dim")


def run_show(target: Target, place: tuple[int, int], *, bytes_max: int, as_json: bool) -> None:
    """Print one letter.

    Raises:
        Invalid: There is no such letter.
        Unavailable: Kafka does not answer.
    """
    with _opened(target) as dead_letters:
        letter = dead_letters.get(place)
    if as_json:
        print(msgspec.json.encode(LetterContent.whole(letter)).decode())
        return
    console = standard_output()
    print_facts(console, _shown_facts(letter, target))
    for name, value in letter.headers:
        console.print(f"header {name}: {_text(value, bytes_max)}", markup=False, soft_wrap=True)
    console.print(f"key: {_text(letter.key, bytes_max)}", markup=False, soft_wrap=True)
    size = "" if letter.value is None else f" ({counted(len(letter.value), 'byte')})"
    console.print(f"value{size}: {_text(letter.value, bytes_max)}", markup=False, soft_wrap=True)


def run_redrive(
    target: Target,
    selection: LetterSelection,
    *,
    to: RedriveTarget,
    limit: int | None,
    comment: str,
    dry_run: bool,
) -> None:
    """Redrive letters.

    Raises:
        Invalid: The prefix has no dead letters, or Kafka does not allow it.
        Fenced: Another redrive or purge has begun.
        Unavailable: Kafka or the job does not answer.
        typer.Exit: Some cannot be redriven.
    """
    progress = _Progress("redriven")
    with _opened(target) as dead_letters, progress:
        report = dead_letters.redrive(
            selection, to=to, limit=limit, comment=comment, dry_run=dry_run, on_progress=progress.report
        )
    whom = "their groups" if to == "group" else "every group of their topics"
    _print_report(report, f"redriven to {whom}, as {counted(report.messages, 'message')}", dry_run=dry_run)


def run_purge(
    target: Target,
    selection: LetterSelection,
    *,
    limit: int | None,
    comment: str,
    erase: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Purge letters, after a confirmation.

    Raises:
        Invalid: Nobody can be asked, the prefix has no dead letters, or Kafka does not allow it.
        Fenced: Another redrive or purge has begun.
        Unavailable: Kafka does not answer.
        typer.Exit: It was not confirmed.
    """
    progress = _Progress("purged")
    with _opened(target) as dead_letters, progress:
        planned = dead_letters.purge(selection, limit=limit, dry_run=True)
        if dry_run:
            _print_report(planned, "purged", dry_run=True)
            if erase:
                also_handled = planned.places.keys()
                _say_erased(dead_letters.erase(dry_run=True, also_handled=also_handled), "would be deleted")
                _say_kept(dead_letters, also_handled)
            return
        if not yes:
            _confirm_purge(planned, erase=erase)
        # Those that the question was about, and no others that have come since.
        asked = LetterSelection(places=frozenset(planned.places.values()))
        report = dead_letters.purge(asked, comment=comment, on_progress=progress.report)
        _print_report(report, "purged", dry_run=False)
        if erase:
            _say_erased(dead_letters.erase(), "deleted")
            _say_kept(dead_letters)


def _say_erased(erased: Mapping[int, int], done: str) -> None:
    say(f"{counted(sum(erased.values()), 'offset')} of the dead-letter topic {done}")


def _say_kept(dead_letters: DeadLetters, also_handled: Collection[str] = ()) -> None:
    """Say which handled letters an erasure leaves, and why: Kafka deletes the beginning of a partition only."""
    waiting: dict[int, str] = {}
    kept: dict[int, list[str]] = {}
    for letter in dead_letters.list(handled=True):
        if letter.handling is None and letter.letter_id not in also_handled:
            waiting.setdefault(letter.partition, letter.place)
        elif letter.partition in waiting:
            kept.setdefault(letter.partition, []).append(letter.place)
    for partition, places in sorted(kept.items()):
        first = waiting[partition]
        them = f"{places[0]} is handled and stays"
        if len(places) > 1:
            them = f"{len(places):,} letters from {places[0]} to {places[-1]} are handled and stay"
        say(
            f"{them} behind {first}, which nobody has handled: redrive that if it is wanted, then"
            f" `popstream dead purge {first} --erase`"
        )


class _Progress:
    """Says every two seconds how far a redrive or a purge is, and where it ended when it was stopped."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._letters = 0
        self._said_s = time.monotonic()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt | PopstreamError) and self._letters:
            say(f"stopped after {counted(self._letters, 'dead letter')}; the same command goes on")

    def report(self, report: LettersReport) -> None:
        self._letters = report.letters
        if time.monotonic() - self._said_s > PROGRESS_S:
            self._said_s = time.monotonic()
            say(f"{self._letters:,} {self._done}")


def _opened(target: Target) -> DeadLetters:
    return DeadLetters(**target.client_options("dead"))


def _confirm_purge(planned: LettersReport, *, erase: bool) -> None:
    marked = f"{counted(planned.letters, 'dead letter')} will be marked as handled, not sent"
    text = f"{marked}; what is handled will be deleted from Kafka" if erase else marked
    if not sys.stdin.isatty():
        message = f"{text}: pass --yes to confirm"
        raise Invalid(message)
    if not typer.confirm(f"{text}. Continue?", err=True):
        raise typer.Exit(Exit.NOT_AS_ASKED)


def _print_report(report: LettersReport, done: str, *, dry_run: bool) -> None:
    if dry_run and report.letters_of:
        table = Table("group", "topic", "letters")
        for (group, topic), count in sorted(report.letters_of.items()):
            table.add_row(escape(group), escape(topic), f"{count:,}")
        standard_output().print(table)
    copies = f"; {report.duplicates:,} were written twice, which is recognised" if report.duplicates else ""
    would = "would be " if dry_run else ""
    say(f"{counted(report.letters, 'dead letter')} {would}{done}{copies}")
    if report.unredriven_count:
        for letter in report.unredriven[:LEFT_SHOWN]:
            say(f"{letter.place} stays: {letter.why}")
        if report.unredriven_count > LEFT_SHOWN:
            say(f"{report.unredriven_count - LEFT_SHOWN:,} more stay")
        raise typer.Exit(Exit.NOT_AS_ASKED)


def _print_table(console: Console, letters: Sequence[Letter], *, handled: bool) -> None:
    table = Table()
    for column in ("letter", "given up", "group", "message", "attempts", "redrives", "why"):
        is_number = column in {"attempts", "redrives"}
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    if handled:
        table.add_column("handled", overflow="fold")
    for letter in letters:
        numbers = (f"{letter.attempts:,}", f"{letter.redrives:,}")
        message = f"{letter.topic}/{letter.queue_id} offset {letter.queue_offset}" if letter.topic else "?"
        texts = (letter.place, utc_text(letter.given_up_ms), letter.group, message)
        row = [*map(escape, texts), *numbers, escape(_why(letter))]
        table.add_row(*row, *([escape(_handled_text(letter.handling))] if handled else []))
    console.print(table)


def _why(letter: Letter) -> str:
    why = letter.reason if letter.cause is None else f"{letter.reason}, {letter.cause.removeprefix(HANDLER)}"
    return f"{why} ({letter.cannot_redrive})" if letter.cannot_redrive else why


def _handled_text(handling: LetterHandling | None) -> str:
    if handling is None:
        return ""
    how = handling.action if handling.to is None else f"{handling.action} to the {handling.to}"
    comment = f": {handling.comment}" if handling.comment else ""
    return f"{how} {utc_text(handling.at_ms)} by {handling.by}{comment}"


def _shown_facts(letter: Letter, target: Target) -> dict[str, str]:
    facts = {
        "letter": letter.place,
        "message": f"{letter.topic}/{letter.queue_id} offset {letter.queue_offset}",
        "group": letter.group,
        "given up": utc_text(letter.given_up_ms),
        "attempts": str(letter.attempts),
        "reason": letter.reason,
    }
    if letter.cause is not None:
        facts["raised"] = letter.cause.removeprefix(HANDLER)
    if letter.history is not None:
        facts["last pop"] = f"{utc_text(letter.history.last_pop_time_ms)}, epoch {letter.history.epoch}"
        place = f"partition {letter.history.ops_partition} offset {letter.history.ops_kafka_offset}"
        facts["given up by"] = f"the operation at {place} of {target.prefix}.ops"
    if letter.redrives:
        facts["redriven before"] = counted(letter.redrives, "time")
    if letter.cannot_redrive:
        facts["no redrive"] = letter.cannot_redrive
    facts["handled"] = _handled_text(letter.handling) or "no"
    places = {"in its queue": letter.queue_offset}
    if letter.handling is not None and letter.handling.sent:
        facts["sent as"] = ", ".join(
            f"offset {first}" if first == last else f"offsets {first} to {last}" for first, last in letter.handling.sent
        )
        places["sent again"] = letter.handling.sent[0][0]
    if target.job is not None and letter.topic:
        for name, queue_offset in places.items():
            request = QueueRequest(topic=letter.topic, queue_id=letter.queue_id, queue_offset=queue_offset)
            facts[name] = _known_by_job(target, request)
    return facts


def _known_by_job(target: Target, request: QueueRequest) -> str:
    """Return what `popstream queue` knows about a place, or why it knows nothing."""
    assert target.job is not None
    try:
        views = ask(target.job, request, list[ConsumeQueueView])
    except PopstreamError as error:
        return error.message
    return "; ".join(unit_text(found) for view in views for found in view.found) or "nothing is known"


def _text(value: bytes | None, bytes_max: int) -> str:
    r"""Return the beginning of bytes as text, or if they are not UTF-8 in hexadecimal.

    >>> _text(b"latte", 3), _text(b"\xff\x00\x01", 2), _text(None, 9), _text(b"\x1b[2J", 9)
    ('lat ... 2 bytes more', '0x ff 00 ... 1 byte more', 'none', '\\x1b[2J')
    """
    if value is None:
        return "none"
    head = value[:bytes_max]
    try:
        value.decode()
    except UnicodeDecodeError:
        text = f"0x {head.hex(' ')}"
    else:
        found = head.decode(errors="ignore")
        head = found.encode()
        text = escape_controls(found, kept="\n\t")
    left = len(value) - len(head)
    return f"{text} ... {counted(left, 'byte')} more" if left else text
