"""Claim: what users install needs what it says: the wire protocol msgspec and xxhash, the client kafka-python besides.

Method: the imports of each module are read from its text, wherever in it they are, and held against a list of what is
allowed. (The contracts of import-linter in pyproject.toml can only list what is forbidden.)
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
WIRE = frozenset(("msgspec", "xxhash"))
CLIENT = WIRE | {"kafka"}
EXTRAS = {
    "key_stores.py": {"cryptography"},  # for PKCS12 stores only
    "librdkafka_reader.py": {"confluent_kafka"},
    "opentelemetry.py": {"opentelemetry"},
    "prometheus.py": {"prometheus_client"},
    "type_variables.py": {"typing_extensions"},  # for type checkers only
}
"""What modules of the client need besides; nothing of the client imports them but `type_variables`."""


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(folder: str, *without: str) -> list[Path]:
    files = sorted((ROOT / folder).rglob("*.py"))
    return [file for file in files if not file.relative_to(ROOT).as_posix().startswith(without)]


def third_party(file: Path) -> set[str]:
    packages = {name.partition(".")[0] for name in imported(file)}
    return packages - sys.stdlib_module_names - {"popstream"}


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        pytest.param(modules("popstream/wire"), WIRE, id="wire"),
        pytest.param(modules("popstream", "popstream/testing", "popstream/cli.py"), CLIENT, id="client"),
    ],
)
def test_packages_are_those_that_users_install(files: list[Path], allowed: frozenset[str]) -> None:
    assert files
    extras = {file.name: extra for file in files if (extra := third_party(file) - allowed)}
    assert extras == (EXTRAS if allowed == CLIENT else {})


def test_the_wire_protocol_imports_nothing_else_of_popstream() -> None:
    wrong = [
        (file.name, name)
        for file in modules("popstream/wire")
        for name in imported(file)
        if name.startswith("popstream") and not name.startswith("popstream.wire.")
    ]
    assert wrong == []


def test_the_domain_takes_from_popstream_the_wire_protocol_alone() -> None:
    wrong = [
        (file.name, name)
        for file in modules("broker_state")
        for name in imported(file)
        if name.startswith("popstream") and not name.startswith("popstream.wire.")
    ]
    assert wrong == []
