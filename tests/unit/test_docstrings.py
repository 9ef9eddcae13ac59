"""Claim: a public function names in its docstring each of our errors that it raises itself.

Method: the sources, as syntax trees. An error that a called function raises is not looked for.
"""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGES = ("popstream", "broker_state", "checkpoints", "connectors", "expectations", "pipelines")
CONSTRUCTORS = ("__init__", "__post_init__")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def sources() -> dict[Path, ast.Module]:
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in paths}


def error_names(modules: dict[Path, ast.Module]) -> set[str]:
    """The public classes of ours that are exceptions."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for module in modules.values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    }
    errors = {
        name for name, found in vars(builtins).items() if isinstance(found, type) and issubclass(found, Exception)
    }
    ours: set[str] = set()
    while more := {name for name, of in bases.items() if of & (errors | ours)} - ours:
        ours |= more
    return {name for name in ours if is_public(name)}


def is_command(function: Function) -> bool:
    """Whether the docstring is the help text of a command, whose errors become exit codes."""
    return any("takes_options" in ast.unparse(decorator) for decorator in function.decorator_list)


def public_functions(node: ast.Module | ast.ClassDef, docstring: str = "") -> Iterator[tuple[Function, str]]:
    """The functions, also of classes, with their docstrings; that of a constructor is that of its class."""
    for inner in node.body:
        if isinstance(inner, ast.ClassDef) and is_public(inner.name):
            yield from public_functions(inner, ast.get_docstring(inner) or "")
        elif isinstance(inner, Function) and is_public(inner.name) and not is_command(inner):
            of_class = docstring if inner.name in CONSTRUCTORS else ""
            yield inner, of_class + (ast.get_docstring(inner) or "")


def raised(node: ast.AST) -> Iterator[str]:
    """The names of the classes after `raise`, not those in functions within the function."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Raise):
            error = inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc
            if isinstance(error, ast.Name):
                yield error.id
        if not isinstance(inner, Function | ast.Lambda | ast.ClassDef):
            yield from raised(inner)


def unnamed(module: ast.Module, errors: set[str]) -> list[str]:
    return [
        f"{function.lineno}: {function.name} raises {error}"
        for function, docstring in public_functions(module)
        for error in sorted(errors & set(raised(function)))
        if not re.search(rf"\b{error}\b", docstring)
    ]


def test_docstrings_name_the_errors_that_functions_raise() -> None:
    modules = sources()
    errors = error_names(modules)
    assert {"Invalid", "Unavailable", "Refused", "ClientClosed"} <= errors
    public = {path: module for path, module in modules.items() if all(map(is_public, path.parts))}
    assert [f"{path}:{found}" for path, module in public.items() for found in unnamed(module, errors)] == []


def test_an_unnamed_error_is_found() -> None:
    module = ast.parse(
        '''
class Box:
    """Raises:
        Invalid: It is empty."""
    def __init__(self):
        raise Invalid("named by the class")
    def get(self):
        """Raise Unavailable if it is locked."""
        if self:
            raise Invalid("unnamed") from None
        def later():
            raise Refused("of another function")
        raise Unavailable("named")
    def _private(self):
        raise Invalid("not judged")
'''
    )
    assert unnamed(module, {"Invalid", "Unavailable", "Refused"}) == ["7: get raises Invalid"]
