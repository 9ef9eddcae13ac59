"""Claim: `popstream` exports what its users name, lists exactly that, and loads nothing before it is used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import popstream
from popstream import _api, async_consumer, async_producer, consumer, errors, message, producer
from popstream.send import outgoing
from popstream.wire import base_errors

ROOT = Path(__file__).parents[3]
NOT_FOR_USERS = {
    "Body": "a type variable",
    "ConsumerSources": "sources other than Kafka, for tests",
    "Observers": "for AsyncConsumer",
    "PopsOfCall": "for AsyncConsumer",
    "SendFuture": "for AsyncProducer",
    "Subscription": "for AsyncConsumer",
    "Result": "a type variable",
    "Value": "a type variable",
    "TypeOf": "a source of queue types other than Kafka, for tests",
}


def imported_names(module: ModuleType, *, of_popstream_only: bool = False) -> set[str]:
    """Return the names that a module imports, the type checker's imports included."""
    return {
        alias.name
        for found in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(found, ast.ImportFrom) and (not of_popstream_only or (found.module or "").startswith("popstream"))
        for alias in found.names
    }


def annotated_names(module: ModuleType) -> set[str]:
    """Return the names in the annotations of the public functions of the public classes in a module."""
    return {
        name.id
        for found in ast.parse(inspect.getsource(module)).body
        if isinstance(found, ast.ClassDef) and found.name in _api.__all__
        for function in found.body
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and (function.name == "__init__" or not function.name.startswith("_"))
        for annotation in [
            function.returns,
            *(argument.annotation for argument in ast.walk(function.args) if isinstance(argument, ast.arg)),
        ]
        if annotation is not None
        for name in ast.walk(annotation)
        if isinstance(name, ast.Name)
    }


def test_all_is_sorted_and_names_each_import_once() -> None:
    assert _api.__all__ == sorted(set(_api.__all__))
    assert set(_api.__all__) == imported_names(_api)


def test_every_public_name_can_be_imported() -> None:
    for name in _api.__all__:
        assert getattr(popstream, name) is getattr(_api, name)
    assert dir(popstream) == _api.__all__
    imported: dict[str, object] = {}
    exec("from popstream import *", imported)  # noqa: S102
    assert imported.keys() - {"__builtins__"} == set(_api.__all__)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'popstream' has no attribute 'Consummer'"):
        _ = popstream.Consummer  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="Sequence"):
        _ = popstream.Sequence  # type: ignore[attr-defined]


def test_every_error_that_a_client_raises_is_public() -> None:
    raised = {
        name for module in (errors, base_errors) for name in module.__all__ if isinstance(getattr(module, name), type)
    }
    assert raised <= set(_api.__all__)


@pytest.mark.parametrize(
    "module", [async_consumer, async_producer, consumer, message, outgoing, producer], ids=lambda found: found.__name__
)
def test_every_type_in_a_public_signature_is_public(module: ModuleType) -> None:
    used = annotated_names(module) & imported_names(module, of_popstream_only=True)
    of_the_wire = {name for name in used if hasattr(sys.modules["popstream.wire.command"], name)} | {"Answer"}
    assert used - set(_api.__all__) - NOT_FOR_USERS.keys() <= of_the_wire


@pytest.mark.parametrize("imports", ["import broker_state.kernel.decide", "from popstream import shutdown, wire"])
def test_the_kernel_loads_no_kafka_client(imports: str) -> None:
    program = f"{imports}; import sys; assert 'popstream.wire' in sys.modules; print('kafka' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


def test_any_module_can_be_imported_first() -> None:
    modules = sorted(
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in (ROOT / "popstream").rglob("*.py")
        if file.stem != "__main__"
    )
    program = f"""
import importlib, sys
for module in {modules}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "popstream"]:
        del sys.modules[name]
    importlib.import_module(module)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
