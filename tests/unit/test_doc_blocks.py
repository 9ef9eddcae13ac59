"""Claim: every code block of the documentation runs, or is marked as one that does not.

```
python      runs: here, or in the test of its page          console     runs, with its output (test_questions.py)
json        is decoded (test_wire.py)                       properties  is read as such a file
toml        is loaded as settings
sh          every `popstream` in it has these options, and every `make` this target; other programs are not run
text        drawings, outputs and pieces of code: does not run              mermaid     a drawing
```
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from connectors.delta.duckdb_tables import DuckDbTables
from connectors.delta.snapshot import open_snapshot
from pipelines.cli.app import app
from pipelines.cli.options import load_settings
from popstream.java_properties import parse_properties
from popstream.testing import MemoryJob
from tests.support.delta_files import append_audit_rows, create_table
from tests.support.kernel_history import KernelHistory

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)

PYTHON = {"README.md", "client.md", "cookbook.md", "quality.md", "scale.md", "tables.md"}
"""Their Python runs: that of client.md and cookbook.md in test_client_page.py, the worker of the README in
test_example.py. That of scale.md is compiled here, and its imports run: it starts a cluster, as the tests of clusters
do."""
CONSOLE = {"questions.md"}
JSON = {"wire.md"}
SECRET = "in place of the three points of a page"  # noqa: S105 - it is in no use
LANGUAGES = {"python", "console", "json", "properties", "toml", "sh", "text", "mermaid"}


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_of_a_kind_that_runs_or_is_marked(page: Path) -> None:
    kinds = {language for language, _ in BLOCK.findall(page.read_text(encoding="utf-8"))}
    assert kinds <= LANGUAGES, "an untagged block is to be `text`, or of a kind that runs"
    for kind, pages in (("python", PYTHON), ("console", CONSOLE), ("json", JSON)):
        assert kind not in kinds or page.name in pages, f"nothing runs the blocks `{kind}` of {page.name}"


def commands(page: Path) -> list[list[str]]:
    """The command lines of the blocks `sh`, without comments."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def without_settings(words: list[str]) -> list[str]:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words


POPSTREAM = [
    (page.name, words[1:])
    for page in PAGES
    for line in commands(page)
    if (words := without_settings(line)) and words[0].rsplit("/", maxsplit=1)[-1] == "popstream"
]
PLACEHOLDER = re.compile(r"^[<|]|^2?>")


def test_there_are_commands() -> None:
    assert len(POPSTREAM) >= 20


@pytest.mark.parametrize(("page", "words"), POPSTREAM, ids=[" ".join(words)[:60] for _, words in POPSTREAM])
def test_a_command_takes_the_options_that_a_page_shows(page: str, words: list[str]) -> None:
    assert page
    end = next((place for place, word in enumerate(words) if PLACEHOLDER.match(word)), len(words))
    words = words[:end]
    command: Any = typer.main.get_command(app)
    while isinstance(command, TyperGroup):
        name, words = words[0], words[1:]
        found = command.commands.get(name)
        assert found is not None, f"there is no command {name}"
        command = found
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert options <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_has_the_targets_that_a_page_shows(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    shown = {line[1] for words in commands(page) if (line := without_settings(words))[:1] == ["make"] and len(line) > 1}
    assert {target for target in shown if f"\n{target}:" not in makefile} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_properties_can_be_read(page: Path) -> None:
    for text in blocks(page, "properties"):
        assert list(parse_properties(text.encode()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_can_be_loaded(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(text.replace('"..."', f'"{SECRET}"'), encoding="utf-8")
        assert load_settings(file).model_fields_set


def test_the_page_on_clusters_imports_what_there_is() -> None:
    (program,) = blocks(ROOT / "docs/scale.md", "python")
    tree = ast.parse(program)
    tree.body = [statement for statement in tree.body if isinstance(statement, ast.Import | ast.ImportFrom)]
    names: dict[str, object] = {}
    exec(compile(tree, "scale.md", "exec"), names)  # noqa: S102
    assert "StandaloneCluster" in names


def test_the_readme_sends_messages() -> None:
    (program,) = [text for text in blocks(ROOT / "README.md", "python") if "from popstream import Producer" in text]
    assert 'Producer("localhost:9092")' in program
    with MemoryJob() as job:
        shown: list[object] = []
        program = program.replace('Producer("localhost:9092")', "job.producer()")
        exec(compile(program, "README.md", "exec"), {"job": job, "print": shown.append})  # noqa: S102
        assert len(job.consumer("g", topics=["orders"]).pop("orders", max_messages=10, timeout_ms=0)) == 10
    assert len(shown) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # delta-rs 1.6 is about to rename how it gives Arrow
def test_the_page_on_tables_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = KernelHistory()
    popped = history.pop(1, "b", 3)
    history.tick(60)
    history.pop(61, "c", 3)
    history.ack(62, "b", popped, 1)
    delta = tmp_path / "var/job/delta"
    for name, rows in history.tables().items():
        create_table(delta, name)
        append_audit_rows(delta, name, rows)
    monkeypatch.chdir(tmp_path)
    (program,) = blocks(ROOT / "docs/tables.md", "python")
    names: dict[str, Any] = {"print": lambda *_: None}
    exec(compile(program, "tables.md", "exec"), names)  # noqa: S102
    assert names["redelivered"].collect().height > 0
    (query,) = [words for page, words in POPSTREAM if page == "tables.md"]
    with DuckDbTables([open_snapshot(delta / name) for name in history.tables()]) as tables:
        assert {row[:2] for row in tables.rows(query[1])} == {("b", "expired")}


def test_the_page_on_quality_opens_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (program,) = blocks(ROOT / "docs/quality.md", "python")
    exec(compile(program, "quality.md", "exec"), {})  # noqa: S102
