"""The file context of Great Expectations: suites, validation definitions and the checkpoint as files in `gx/`.

`python -m expectations.context` writes them from the suites in code; a test keeps them current. Data Docs and results
of a context that is used in place go to `gx/uncommitted`, which git ignores; `popstream check` works on a copy.
"""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import great_expectations as gx

from expectations.actions import CommandAction, WebhookAction
from expectations.suites import rules_of, suites
from expectations.tables_source import SOURCE
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from great_expectations.data_context.data_context.file_data_context import FileDataContext

__all__ = ["CHECKPOINT", "CONTEXT", "SITE", "context_files", "open_context", "write_context"]

CONTEXT: Final = Path(__file__).parent / "gx"
CHECKPOINT: Final = "popstream"
SITE: Final = "local_site"

_UNCOMMITTED: Final = "uncommitted"
_CONFIG: Final = "great_expectations.yml"
_BATCH: Final = "whole"
_ACTIONS: Final = (CommandAction, WebhookAction)
"""Importing them lets the files of a checkpoint name them."""
_RESULT_FORMAT: Final = {"result_format": "COMPLETE"}


def open_context(work: Path, source: Path | None = None) -> FileDataContext:
    """Return a context that is a copy of another one, so that a run leaves no trace there.

    Args:
        work: An empty folder for the copy.
        source: The context to copy; None: ours.

    Raises:
        Invalid: There is no context at `source`, or it cannot be read.
    """
    folder = CONTEXT if source is None else source
    if not (folder / _CONFIG).is_file():
        message = f"{folder} is not a context of Great Expectations: it has no {_CONFIG}"
        raise Invalid(message, subject=str(folder))
    shutil.copytree(folder, work, ignore=shutil.ignore_patterns(_UNCOMMITTED), dirs_exist_ok=True)
    try:
        context = gx.get_context(mode="file", context_root_dir=str(work))
        if SOURCE in context.data_sources.all() and context.checkpoints.get(CHECKPOINT) is not None:
            return context
        problem = f"it has no data source {SOURCE}"
    except Exception as error:  # noqa: BLE001 - of any kind, for whatever is wrong in the files
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
    message = f"the context of Great Expectations in {folder} cannot be used: {problem}"
    raise Invalid(message, subject=str(folder))


def write_context(folder: Path) -> None:
    """Write the files of the context, and delete those of suites that no longer exist."""
    files = context_files()
    for path in [path for path in folder.rglob("*") if path.is_file() and _UNCOMMITTED not in path.parts]:
        if str(path.relative_to(folder)) not in files:
            path.unlink()
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def context_files() -> dict[str, str]:
    """Return the text of each file of the context by its path."""
    made = suites()
    files: dict[str, Any] = {f"expectations/{suite.name}.json": _suite(suite) for suite in made}
    files |= {f"validation_definitions/{suite.name}.json": _definition(suite.name) for suite in made}
    files[f"checkpoints/{CHECKPOINT}.json"] = {
        "actions": [],
        "id": _id("checkpoint", CHECKPOINT),
        "name": CHECKPOINT,
        "result_format": _RESULT_FORMAT,
        "validation_definitions": [_reference("definition", suite.name) for suite in made],
    }
    texts = {name: json.dumps(document, indent=2, sort_keys=True) + "\n" for name, document in files.items()}
    texts[_CONFIG] = _config([suite.name for suite in made])
    texts[".gitignore"] = f"{_UNCOMMITTED}/\n"
    return texts


def _suite(suite: ExpectationSuite) -> dict[str, Any]:
    return {
        "expectations": [
            {
                "description": expectation.description,
                "id": _id("suite", suite.name, expectation.expectation_type),
                # In one line, as the file is to be compared.
                "kwargs": {"unexpected_rows_query": " ".join(expectation.sql.split())},
                "meta": {},
                "severity": "critical",
                "type": expectation.expectation_type,
            }
            for expectation in rules_of(suite)
        ],
        "id": _id("suite", suite.name),
        "meta": {},
        "name": suite.name,
        "notes": None,
        "suite_parameters": {},
    }


def _definition(table: str) -> dict[str, Any]:
    return {
        "data": {
            "asset": _reference("asset", table),
            "batch_definition": {"id": _id("batch", table), "name": _BATCH},
            "datasource": _reference("source", SOURCE),
        },
        **_reference("definition", table),
        "suite": _reference("suite", table),
    }


def _reference(kind: str, name: str) -> dict[str, str]:
    return {"id": _id(kind, name), "name": name}


def _id(*names: str) -> str:
    """Return the id of a thing of the context, the same in each run."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(("popstream:expectations", *names))))


def _config(tables: list[str]) -> str:
    """Return great_expectations.yml. It has paths below its folder, and sends nothing to anybody."""
    assets = "".join(
        f"""\
      {table}:
        type: delta_table
        id: {_id("asset", table)}
        batch_definitions:
          {_BATCH}:
            id: {_id("batch", table)}
"""
        for table in tables
    )
    stores = "".join(
        f"""\
  {name}:
    class_name: {kind}
    store_backend:
      class_name: TupleFilesystemStoreBackend
      base_directory: {folder}/
      suppress_store_backend_id: true
"""
        for name, kind, folder in (
            ("expectations_store", "ExpectationsStore", "expectations"),
            ("validation_definition_store", "ValidationDefinitionStore", "validation_definitions"),
            ("checkpoint_store", "CheckpointStore", "checkpoints"),
            ("validation_results_store", "ValidationResultsStore", f"{_UNCOMMITTED}/validations"),
        )
    )
    return f"""\
# Generated by `python -m expectations.context`. Import `expectations.context` before you open it: it brings the data
# source and the expectations.
config_version: 4
analytics_enabled: false
progress_bars:
  globally: false
fluent_datasources:
  {SOURCE}:
    type: popstream_tables
    id: {_id("source", SOURCE)}
    folder: var/delta
    assets:
{assets}expectations_store_name: expectations_store
validation_results_store_name: validation_results_store
checkpoint_store_name: checkpoint_store
stores:
{stores}data_docs_sites:
  {SITE}:
    class_name: SiteBuilder
    show_how_to_buttons: false
    store_backend:
      class_name: TupleFilesystemStoreBackend
      base_directory: {_UNCOMMITTED}/data_docs/{SITE}/
      suppress_store_backend_id: true
    site_index_builder:
      class_name: DefaultSiteIndexBuilder
"""


if __name__ == "__main__":
    write_context(Path(sys.argv[1]) if sys.argv[1:] else CONTEXT)
