"""Claim: files, folders, pages and tests that the documentation names exist. Method: look for each in the checkout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ROOMS = (
    "broker_state",
    "checkpoints",
    "connectors",
    "docker",
    "docs",
    "expectations",
    "pipelines",
    "popstream",
    "tests",
)
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
