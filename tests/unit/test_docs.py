"""Claim: files, folders, pages and tests that the documentation names exist. Method: look for each in the checkout."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = (
    "broker_state",
    "checkpoints",
    "connectors",
    "deploy",
    "docker",
    "docs",
    "expectations",
    "pipelines",
    "popstream",
    "tests",
)
NOT_PRODUCT = ("deploy", "docker", "docs", "scripts", "tests")
FILE = re.compile(r"`([\w/.]+\.(?:py|sh|sql|md))(?:::(test_\w+))?")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def all_files() -> list[Path]:
    top = [path for path in ROOT.iterdir() if path.is_file()]
    rooms = [
        path for room in (*ROOMS, "scripts") for path in (ROOT / room).rglob("*") if "__pycache__" not in path.parts
    ]
    return [*top, *rooms]


FILES = all_files()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    missing = []
    for name, test in FILE.findall(page.read_text()):
        found = [
            path for path in FILES if path.is_relative_to(ROOT) and f"/{path.relative_to(ROOT)}".endswith(f"/{name}")
        ]
        if not any(test in path.read_text() for path in found):
            missing.append(f"{name}::{test}" if test else name)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_folders_that_are_named_exist(page: Path) -> None:
    folders = re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w/]*)`", page.read_text())
    assert [name for name in folders if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()] == []


# Calls that name a thread: the place and the keyword of the name.
NAMES_THREADS = {
    "Coalescer": (0, "name"),
    "HandlerPool": (0, "name"),
    "InheritableThread": (3, "name"),
    "LeaseRenewer": (0, "name"),
    "OrderedSender": (0, "name"),
    "Periodic": (0, "name"),
    "QueueTypes": (2, "client_id"),
    "RetryLoop": (0, "name"),
    "Subscription": (0, "name"),
    "Thread": (2, "name"),
    "ThreadPoolExecutor": (1, "thread_name_prefix"),
}


def literal_thread_names(source: str) -> Iterator[str]:
    """Names of threads; of `f"{client_id}-acks"` the last literal part, "-acks"."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        place, keyword = NAMES_THREADS.get(ast.unparse(call.func).split(".")[-1], (0, ""))
        given = [*call.args[place : place + 1], *(one.value for one in call.keywords if one.arg == keyword)]
        for name in given if keyword else []:
            parts = name.values if isinstance(name, ast.JoinedStr) else [name]
            texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            yield from (text for text in texts[-1:] if text.strip("-"))


def test_literal_thread_names_are_found() -> None:
    source = """
threading.Thread(target=run, name="one", daemon=True)
Periodic("two", 1.0, run)
ThreadPoolExecutor(3, "three")
Coalescer(f"{client_id}-four", delay_ms=5)
Thread(target=run, name=f"{name}-{number}")
Thread(target=run, name=name)
"""
    assert [*literal_thread_names(source)] == ["one", "two", "three", "-four"]


def test_the_tables_of_threads_have_every_thread_name() -> None:
    section = (ROOT / "docs/architecture.md").read_text().partition("## Threads\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    # `<client id>-worker-N` is "-worker" in the code, `decide_0` is "decide".
    names = {re.sub("^<client id>|[-_][0N]$", "", name) for cell in cells for name in re.findall("`([^`]+)`", cell)}
    product = [path for path in FILES if path.suffix == ".py" and path.relative_to(ROOT).parts[0] not in NOT_PRODUCT]
    found = {name: path.name for path in product for name in literal_thread_names(path.read_text())}
    assert {"decide", "flush", "snapshot", "-acks", "-sends"} <= found.keys()
    assert {name: file for name, file in found.items() if name not in names} == {}
