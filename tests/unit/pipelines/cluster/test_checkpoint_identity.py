"""The identity of a checkpoint (checkpoint_identity.py): what is stored of it, and when."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster import checkpoint_identity
from pipelines.cluster.checkpoint_identity import CheckpointIdentity, owned_identity, stored_identity
from popstream.wire.base_errors import Invalid

OPS = TopicFacts("p.ops", "T", 4)
NO_SPARK = cast("Any", None)


class Files:
    """In place of those of Hadoop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.content: dict[str, bytes] = {}
        monkeypatch.setattr(checkpoint_identity, "HadoopFile", lambda _, url: File(self, url))


class File:
    def __init__(self, files: Files, url: str) -> None:
        self.url = url
        self._files = files

    def read(self) -> bytes | None:
        return self._files.content.get(self.url)

    def write(self, content: bytes, *, overwrite: bool) -> None:
        assert overwrite or self.url not in self._files.content
        self._files.content[self.url] = content


def start(ends: dict[int, int], *, is_refused: bool = False) -> CheckpointIdentity:
    def take(_: CheckpointIdentity) -> None:
        if is_refused:
            message = "the prefix belongs to another state"
            raise Invalid(message)

    return owned_identity(NO_SPARK, "/state", "p", OPS, take=take, begins=lambda: {"audit_from": ends})


def test_a_state_begins_where_topics_end_when_it_has_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(monkeypatch)
    with pytest.raises(Invalid, match="belongs to another state"):
        start({0: 5}, is_refused=True)
    assert not files.content
    begun = start({0: 900})
    assert begun.audit_from == {0: 900}
    assert start({0: 1_000}) == begun == stored_identity(NO_SPARK, "/state")


def test_a_state_of_the_version_before_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(monkeypatch)
    start({})
    (name,) = files.content
    fields = msgspec.json.decode(files.content[name])
    files.content[name] = msgspec.json.encode({**fields, "format": 1})
    with pytest.raises(Invalid, match=r"and this version reads 2.*popstream snapshot --checkpoint /state"):
        start({})
