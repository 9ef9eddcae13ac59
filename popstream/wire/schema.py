"""JSON Schemas of the wire protocol, generated from the types that encode and decode it.

`python -m popstream.wire.schema` writes `docs/schema/command.schema.json` and `docs/schema/answer.schema.json`; a test
compares them with the types. A schema describes what can be decoded; values out of range are refused later, with a
code (docs/semantics.md).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from popstream.wire.answer import Frame
from popstream.wire.command import Command

__all__ = ["SCHEMA_FILES", "answer_schema", "command_schema", "schema_text", "write_schemas"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FOLDER = Path("docs/schema")


def command_schema() -> dict[str, Any]:
    """Return the schema of the value of a record of the ops topic.

    >>> sorted(command_schema()["discriminator"]["mapping"])[:3]
    ['ack', 'cancel', 'change_invisible']
    """
    return _schema(Command, "popstream operation", "The value of one record of the ops topic.")


def answer_schema() -> dict[str, Any]:
    """Return the schema of the value of a record of the results topic: a frame of answers.

    >>> "Answer" in answer_schema()["$defs"]
    True
    """
    return _schema(Frame, "popstream frame of answers", "The value of one record of the results topic.")


SCHEMA_FILES = {"command.schema.json": command_schema, "answer.schema.json": answer_schema}
"""The function that makes each file."""


def schema_text(schema: dict[str, Any]) -> str:
    """Return a schema as it is committed.

    >>> print(schema_text({"type": "object"}), end="")
    {
      "type": "object"
    }
    """
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


def write_schemas(folder: Path) -> list[Path]:
    """Write every schema below `folder`; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, schema in SCHEMA_FILES.items():
        path = folder / name
        path.write_text(schema_text(schema()), encoding="utf-8")
        paths.append(path)
    return paths


def _schema(described: Any, title: str, description: str) -> dict[str, Any]:  # noqa: ANN401 - a type or a union of types
    (top,), components = msgspec.json.schema_components([described], ref_template="#/$defs/{name}")
    if "$ref" in top:
        top = components.pop(top["$ref"].removeprefix("#/$defs/"))
    return {"$schema": DIALECT, **top, "title": title, "description": description, "$defs": components}


if __name__ == "__main__":
    for written in write_schemas(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
        print(written)
