"""`popstream ops`: send operations from the shell and print their answers."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines.cli.exits import Exit
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.target import Target
from popstream.exchange.transport import Transport
from popstream.wire.answer import Answer
from popstream.wire.base_errors import Invalid
from popstream.wire.command import COMMAND_TYPES, WIRE_VERSION, Command
from popstream.wire.decode_errors import DECODE_ERRORS
from popstream.wire.reason import Reason

__all__ = ["EXAMPLES", "example_lines", "read_operations", "read_text", "run_ops"]

NO_REFUSALS = frozenset((Reason.OK, Reason.NO_MESSAGE, Reason.POLLING_TIMEOUT, Reason.CANCELLED))

_HANDLE = {"group": "billing", "handle": "<the handle in the answer to a pop>"}
_ENTRY = {"handle": 0, "offsets": [[0, 4]]}
_FIELDS: dict[str, dict[str, Any]] = {
    "declare": {"topic_id": "<Kafka's id of the topic, any text to try things>"},
    "policy": {"group": "billing", "max_attempts": 5, "back_off_ms": [1000, 5000]},
    "dispatch": {"ranges": [{"first": 0, "last": 99}]},
    "pop": {"group": "billing", "max_messages": 10, "invisible_time_ms": 30_000},
    "ack": {"handles": [_HANDLE], "entries": [_ENTRY]},
    "change_invisible": {"handles": [_HANDLE], "entries": [{**_ENTRY, "invisible_time_ms": 60_000}]},
    "reject": {"handles": [_HANDLE], "entries": [{**_ENTRY, "cause": "cannot be parsed"}]},
    "cancel": {"target_op_id": "<op_id of the pop>"},
    "return_client": {"group": "billing", "client_id": "worker-1"},
    "reset_offset": {"group": "billing", "queue_offset": 0},
    "forget_lane": {"group": "billing"},
    "redrive": {"group": "billing", "offsets": [[0, 4]], "to": "group", "by": "anna@bar", "comment": "fixed"},
    "tick": {},
}
EXAMPLES = {name: {"type": name, "topic": "orders", "queue_id": 0, **fields} for name, fields in _FIELDS.items()}


def example_lines(kind: str) -> list[str]:
    """Return an operation of a type, or with `all` one of each type, as JSON.

    >>> example_lines("tick")
    ['{"type":"tick","topic":"orders","queue_id":0}']
    """
    return [msgspec.json.encode(EXAMPLES[name]).decode() for name in (EXAMPLES if kind == "all" else [kind])]


def read_operations(text: str) -> list[Command]:
    """Parse operations from JSON text: one object, a list of objects, or one object per line.

    `v` may be left out. Invalid operations are refused before anything is sent.

    Raises:
        Invalid: Its details list every invalid operation.
    """
    try:
        objects = msgspec.json.decode(text)
    except DECODE_ERRORS:
        lines = [line for line in text.splitlines() if line.strip()]
        objects = [_decoded(line, number) for number, line in enumerate(lines, 1)]
    commands: list[Command] = []
    wrong: list[str] = []
    for number, fields in enumerate(objects if isinstance(objects, list) else [objects], 1):
        try:
            with_version = {"v": WIRE_VERSION, **fields} if isinstance(fields, dict) else fields
            commands.append(msgspec.convert(with_version, Command))
        except msgspec.ValidationError as error:
            wrong.append(f"operation {number}: {_explained(error, fields)}")
    if wrong or not commands:
        message = "nothing is sent:" if wrong else "no operation is given; `popstream ops --example pop` shows one"
        raise Invalid(message, details=wrong)
    return commands


def run_ops(target: Target, commands: Sequence[Command], *, timeout_ms: int, as_json: bool) -> None:
    """Send the operations, and print the answers in the same order.

    Raises:
        AnswerTimeout: The job does not answer.
        typer.Exit: An operation was refused as a whole.
    """
    refused = False
    with Transport(target.client_settings("ops")) as transport:
        waiting = [transport.submit(command, timeout_ms=timeout_ms) for command in commands]
        for future in waiting:
            answer = future.result()
            refused = refused or answer.reason not in NO_REFUSALS
            if as_json:
                print(msgspec.json.encode(answer).decode(), flush=True)
            else:
                _print(standard_output(), answer)
    if refused:
        raise typer.Exit(Exit.NOT_AS_ASKED)


def read_text(operation: str | None) -> str:
    """Return the argument, or the text of standard input.

    Raises:
        Invalid: There is neither an argument nor piped input, or it is not UTF-8.
    """
    if operation is not None and operation != "-":
        found = operation.encode(errors="surrogateescape")  # as Python has decoded what is no UTF-8
    elif sys.stdin.isatty():
        message = "give an operation as JSON, or pipe it in; `popstream ops --example pop` shows one"
        raise Invalid(message)
    else:
        found = sys.stdin.buffer.read()
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        message = f"the operations are not UTF-8: {error.reason} at byte {error.start}"
        raise Invalid(message) from error


def _decoded(line: str, number: int) -> object:
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        message = f"line {number} is not JSON: {error}"
        raise Invalid(message) from error


def _explained(error: msgspec.ValidationError, fields: object) -> str:
    kind = fields.get("type") if isinstance(fields, dict) else None
    if kind is None:
        return f"{error}; an operation is a JSON object with `type`, `topic` and `queue_id`"
    if not isinstance(kind, str) or kind not in COMMAND_TYPES:
        return f"unknown type {kind!r}: use one of {', '.join(COMMAND_TYPES)}"
    return f"{error}; `popstream ops --example {kind}` shows a valid one"


def _print(console: Console, answer: Answer) -> None:
    colour = "green" if answer.reason is Reason.OK else "yellow" if answer.reason in NO_REFUSALS else "red"
    changed = "changed state" if answer.applied else "changed nothing"
    where = escape(f"{answer.topic}/{answer.queue_id}")
    console.print(f"[bold]{answer.type}[/] {where}: [{colour}]{answer.reason}[/] ({answer.code}), {changed}")
    facts = {
        field: getattr(answer, field)
        for field in (
            "detail",
            "commit_position",
            "commit_offset",
            "commit_offsets",
            "released",
            "pop_time_ms",
            "invisible_time_ms",
            "handle",
            "handles",
        )
    }
    facts |= {"op_id": answer.op_id, "now_ms": answer.now_ms}
    print_facts(console, {name: value for name, value in facts.items() if value not in (None, [], {})}, indent=2)
    _print_rows(console, ("first", "last", "attempt"), ((m.first, m.last, m.attempt) for m in answer.messages))
    _print_rows(
        console,
        ("entry", "first", "last", "reason", "code", "applied"),
        ((r.entry, r.first, r.last, str(r.reason), r.code, r.applied) for r in answer.runs),
    )


def _print_rows(console: Console, columns: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    table = Table(*columns)
    for row in rows:
        table.add_row(*map(str, row))
    if table.row_count:
        console.print(table)
