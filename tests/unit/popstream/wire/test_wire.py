"""Claim: docs/wire.md and docs/schema say what the code does. Method: decode, validate, hold the conversation again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from kafka.partitioner import murmur2

from popstream import tag_hash
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.testing._memory_link import frame_of
from popstream.testing.memory_job import MemoryJob
from popstream.wire.answer import Answer
from popstream.wire.command import COMMAND_TYPES, Command, encode_command
from popstream.wire.reason import CODE_OF_REASON
from popstream.wire.schema import SCHEMA_FILES, answer_schema, command_schema, schema_text

DOCS = Path(__file__).parents[4] / "docs"
TEXT = (DOCS / "wire.md").read_text(encoding="utf-8")
EXAMPLES = [json.loads(found) for found in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]
OPERATIONS = [example for example in EXAMPLES if "reason" not in example]
ANSWERS = [example for example in EXAMPLES if "reason" in example]


@pytest.mark.parametrize("name", SCHEMA_FILES)
def test_the_committed_schemas_are_current(name: str) -> None:
    """Otherwise: python -m popstream.wire.schema."""
    assert (DOCS / "schema" / name).read_text(encoding="utf-8") == schema_text(SCHEMA_FILES[name]())


@pytest.mark.parametrize("schema", [command_schema(), answer_schema()], ids=["command", "answer"])
def test_the_schemas_are_schemas(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)


def test_there_is_an_example_of_every_operation() -> None:
    assert {example["type"] for example in OPERATIONS} == set(COMMAND_TYPES)


@pytest.mark.parametrize("example", OPERATIONS, ids=lambda example: example["type"])
def test_an_operation_is_what_the_code_sends(example: dict[str, Any]) -> None:
    command: Command = msgspec.convert(example, Command)
    encoded = encode_command(command)
    assert json.loads(encoded) == example
    jsonschema.validate(json.loads(encoded), command_schema())


@pytest.mark.parametrize("example", OPERATIONS, ids=lambda example: example["type"])
def test_an_unknown_field_is_not_readable(example: dict[str, Any]) -> None:
    wrong = example | {"surprise": 1}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Command)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, command_schema())


@pytest.mark.parametrize("example", ANSWERS, ids=lambda example: example["type"])
def test_an_answer_is_what_the_code_reads(example: dict[str, Any]) -> None:
    answer = msgspec.convert(example, Answer)
    frame = json.loads(frame_of([answer]))
    assert frame == {"v": 1, "answers": [example]}
    jsonschema.validate(frame, answer_schema())


def test_the_conversation_goes_as_written() -> None:
    job = MemoryJob(now_ms=ANSWERS[0]["now_ms"])
    link = job.link()
    for operation in OPERATIONS:
        job.send(msgspec.convert(operation, Command))
        job.now_ms += 1_000
    answers = [answer for frame in link.receive(0) for answer in json.loads(frame)["answers"]]
    assert answers == ANSWERS


def test_the_vectors_of_the_partitioner_are_right() -> None:
    rows = re.findall(r"\| (\S+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", TEXT)
    assert len(rows) == 4
    for topic, queue_id, hashed, of_4, of_12 in rows:
        key = ops_key(topic, int(queue_id))
        assert murmur2(key) & 0x7FFF_FFFF == int(hashed)
        assert (partition_of(key, 4), partition_of(key, 12)) == (int(of_4), int(of_12))


def test_each_reason_is_told_with_its_code() -> None:
    rows = re.findall(r"^\| ([A-Z_]+) \| (\d+) \|", TEXT, re.MULTILINE)
    assert {(reason, int(code)) for reason, code in rows} == {(str(r), code) for r, code in CODE_OF_REASON.items()}
    assert len(rows) == len(CODE_OF_REASON)


def test_the_vector_of_the_tag_hash_is_right() -> None:
    assert str(tag_hash("paid")) in TEXT
