"""The messages in the source that name a command of popstream, and all its texts, with `...` for what only a running
job knows.
"""

from __future__ import annotations

import ast
import itertools
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Message", "printed_messages", "source_texts"]

_ROOT = Path(__file__).parents[2]
_ROOMS = ("broker_state", "checkpoints", "connectors", "pipelines", "popstream")
_UNKNOWN = "..."
_TEXTS_MAX = 16
"""Of an expression that may be one of several texts."""
_DEPTH_MAX = 5

_Parts = dict[str, list[ast.expr]]
"""By the name of a variable, a constant or a function, what it may be or return."""


class Message(NamedTuple):
    """A text, and where it is said: with an error, or else as advice, which other messages may end with."""

    text: str
    where: str
    is_of_error: bool


@cache
def printed_messages() -> list[Message]:
    """Return the messages of errors, and other advice, that name a command.

    >>> any("`popstream restore --lossy`" in message.text for message in printed_messages())
    True
    """
    trees = _source()
    public = {name: parts for tree in trees.values() for name, parts in _constants_of(tree).items() if name[0] != "_"}
    found: dict[str, Message] = {}
    for path, tree in trees.items():
        inside = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        local = {name: parts for function in inside for name, parts in _assigned(ast.walk(function)).items()}
        known = {**public, **local, **_constants_of(tree)}
        for scope in ast.walk(tree):
            if isinstance(scope, ast.FunctionDef | ast.Module):
                for node, text, is_of_error in _said_in(scope, known):
                    if "`popstream " in text:
                        found.setdefault(text, Message(text, f"{path.relative_to(_ROOT)}:{node.lineno}", is_of_error))
    return list(found.values())


@cache
def source_texts() -> list[str]:
    """Return every text in the source but its docstrings.

    >>> any("cluster_job_started" in text for text in source_texts())
    True
    """
    found: list[str] = []
    for tree in _source().values():
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in docstrings:
                found += [text for text in _texts(node, {}) if text != _UNKNOWN]
    return found


@cache
def _source() -> dict[Path, ast.Module]:
    paths = [path for room in _ROOMS for path in sorted((_ROOT / room).rglob("*.py"))]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _said_in(scope: ast.FunctionDef | ast.Module, known: _Parts) -> Iterator[tuple[ast.expr, str, bool]]:
    if isinstance(scope, ast.FunctionDef):
        parameters: _Parts = {each.arg: [] for each in [*scope.args.args, *scope.args.kwonlyargs]}
        known = {**known, **parameters, **_assigned(ast.walk(scope))}
        nodes: Iterator[ast.AST] = ast.walk(scope)
    else:
        nodes = itertools.chain.from_iterable(ast.walk(each) for each in scope.body if isinstance(each, ast.Assign))
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[message, *_], keywords=keywords) if (
                name[0].isupper() or name == "say"
            ):
                details = [each.value for each in keywords if each.arg == "details"]
                for text in _texts(message, known):
                    yield node, "\n".join([text, *(each for one in details for each in _texts(one, known))]), True
            case ast.Call(keywords=[*keywords]) if keywords:
                yield from ((node, text, False) for each in keywords for text in _texts(each.value, known))
            case ast.Return(value=ast.expr() as value):
                yield from ((value, text, False) for text in _texts(value, known))


def _constants_of(tree: ast.Module) -> _Parts:
    functions = {
        node.name: [
            each.value for each in ast.walk(node) if isinstance(each, ast.Return | ast.Yield) and each.value is not None
        ]
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    return {**functions, **_assigned(iter(tree.body))}


def _assigned(nodes: Iterator[ast.AST]) -> _Parts:
    found: _Parts = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
    return found


def _texts(node: ast.expr, known: _Parts, depth: int = 0) -> list[str]:
    """Return what an expression may be."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            parts = [_texts(value, known, depth) for value in values]
            return ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), _TEXTS_MAX)]
        case ast.FormattedValue(value=value) | ast.Starred(value=value) | ast.ListComp(elt=value):
            return _texts(value, known, depth)
        case ast.Call(func=ast.Attribute(attr="join"), args=[value]):
            return _texts(value, known, depth)
        case ast.List(elts=values) | ast.BoolOp(values=values):
            return [text for value in values for text in _texts(value, known, depth)]
        case ast.IfExp(body=body, orelse=other):
            return _texts(body, known, depth) + _texts(other, known, depth)
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)) if depth < _DEPTH_MAX:
            found = [text for value in known.get(name, []) for text in _texts(value, known, depth + 1)]
            return found[:_TEXTS_MAX] or [_UNKNOWN]
        case _:
            return [_UNKNOWN]
