"""Claim: the files of the context are those of the suites in code, and a context works as its owners know it."""

from __future__ import annotations

import json
import shutil
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE
from expectations.actions import call_webhook, run_command
from expectations.context import CONTEXT, context_files
from expectations.data_docs import without_network
from expectations.opened_tables import OpenedTables
from expectations.tables_source import TablesDatasource
from expectations.validate import validate
from popstream.wire.base_errors import Invalid
from tests.support.delta_files import create_table

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES = (*AUDIT_TABLES, CONSUME_QUEUE.name)


@pytest.fixture
def delta(tmp_path: Path) -> Path:
    for table in TABLES:
        create_table(tmp_path / "var/delta", table)
    return tmp_path / "var/delta"


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_files_are_those_of_the_suites() -> None:
    found = {name: text for name, text in files_in(CONTEXT).items() if not name.startswith("uncommitted/")}
    assert found == context_files(), "run: python -m expectations.context"


def test_a_context_in_place_runs_its_checkpoint(delta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import great_expectations as gx  # noqa: PLC0415 - `expectations` has to be imported before

    monkeypatch.chdir(tmp_path)
    shutil.copytree(CONTEXT, tmp_path / "quality")
    assert delta.is_relative_to(tmp_path)

    context = gx.get_context(mode="file", context_root_dir=str(tmp_path / "quality"))
    result = context.checkpoints.get("popstream").run()

    source = context.data_sources.get("tables")
    assert isinstance(source, TablesDatasource)
    source.close()
    assert result.success
    assert {validation.suite_name for validation in result.run_results.values()} == set(TABLES)


def test_an_extended_copy_is_used_and_left_alone(delta: Path, tmp_path: Path) -> None:
    copy = tmp_path / "quality"
    shutil.copytree(CONTEXT, copy)
    suite = copy / "expectations/rejected.json"
    document = json.loads(suite.read_text())
    own = {**document["expectations"][0], "id": None, "description": "There is a rejected record."}
    own["kwargs"] = {"unexpected_rows_query": "SELECT 'none' AS found WHERE NOT EXISTS (FROM {batch})"}
    document["expectations"] = [own]
    suite.write_text(json.dumps(document))
    checkpoint = copy / "checkpoints/popstream.json"
    told = tmp_path / "told.json"
    actions = [{"type": "popstream_command", "name": "tell", "command": f"tee {told}"}]
    checkpoint.write_text(json.dumps({**json.loads(checkpoint.read_text()), "actions": actions}))
    before = files_in(copy)

    with OpenedTables(delta) as opened:
        report = validate(opened, context=copy, results=False)

    (failure,) = report.failures
    assert (failure.suite, failure.description, failure.unexpected_count) == (
        "rejected",
        "There is a rejected record.",
        1,
    )
    assert [each["rows"] for each in json.loads(told.read_text())["failures"]] == [[{"found": "none"}]]
    assert files_in(copy) == before


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "great_expectations.yml").unlink(), "is not a context of Great Expectations"),
        (lambda folder: (folder / "checkpoints/popstream.json").unlink(), "cannot be used"),
        (lambda folder: (folder / "great_expectations.yml").write_text("config_version: 4\n"), "cannot be used"),
    ],
)
def test_a_context_that_cannot_be_used_is_refused(delta: Path, tmp_path: Path, spoil: Any, said: str) -> None:
    shutil.copytree(CONTEXT, tmp_path / "quality")
    spoil(tmp_path / "quality")
    with OpenedTables(delta) as opened, pytest.raises(Invalid, match=said):
        validate(opened, context=tmp_path / "quality", results=False)


def test_data_docs_need_no_network(delta: Path, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    with OpenedTables(delta) as opened:
        validate(opened, results=False, data_docs=docs)
    pages = [page.read_text() for page in docs.rglob("*.html")]
    assert len(pages) >= 1 + 2 * len(TABLES)
    assert any("A message is leased only after its previous lease" in page for page in pages), "rules are in words"
    for page in pages:
        for tag in ("src", "link", "@import", "url("):
            assert f"{tag}=http" not in page.replace('"', "").replace("'", "")
        assert 'rel="stylesheet" href="http' not in page
        assert "<script" not in page


def test_what_a_page_loads_is_taken_out_and_what_it_says_stays() -> None:
    page = (
        '<head><link rel="stylesheet" href="https://a.example/b.css"><script src="https://a.example/c.js"></script>'
        '<style>@import url("https://a.example/d.css"); p { color: red }</style></head><p><a href="https://e.example">e</a></p>'
    )
    kept = without_network(page)
    assert "a.example" not in kept
    assert "p { color: red }" in kept
    assert '<a href="https://e.example">e</a>' in kept


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/broken" else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", told
        server.shutdown()
        thread.join()


def test_a_webhook_is_told(hook: tuple[str, list[dict[str, Any]]]) -> None:
    url, told = hook
    assert call_webhook(f"{url}/secret", {"failures": [1]}) is None
    assert told == [{"failures": [1]}]
    broken = call_webhook(f"{url}/broken", {})
    assert broken == f"the webhook at {url.removeprefix('http://')} answered 500"


def test_what_goes_wrong_is_said_without_the_path_which_may_be_a_secret() -> None:
    said = call_webhook("http://127.0.0.1:9/secret", {})
    assert said is not None
    assert said.startswith("the webhook at 127.0.0.1:9 cannot be reached")
    assert "secret" not in said
    assert run_command("no-such-program-of-ours", {}) is not None
    assert run_command("'", {}) == "the command `'` cannot be run: No closing quotation"
