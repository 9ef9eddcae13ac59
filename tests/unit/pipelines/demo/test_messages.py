"""The messages of a demo: made ones carry their own check, a file's lines arrive byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.demo.messages import Contents, Source, content_hash, is_poison, is_whole, split_lines
from popstream.wire.failures import Invalid


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"\n", [b""]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"\r\n\r\n", [b"", b""]),
        (b"a\r\r\nb\rc\n", [b"a\r", b"b\rc"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_lines_do_not_depend_on_how_the_file_is_read(text: bytes, lines: list[bytes], size: int) -> None:
    def blocks() -> Iterator[bytes]:
        yield from (text[start : start + size] for start in range(0, len(text), size))

    assert list(split_lines(blocks())) == lines


def test_a_made_message_tells_whether_it_is_whole() -> None:
    for value in Source(count=3).values():
        assert is_whole(value)
        assert not is_whole(value.replace(b"sequence", b"seqvence"))
    assert not is_whole(b"")


def test_every_thousandth_message_is_poison() -> None:
    values = list(Source(count=2000).values())
    assert [number for number, value in enumerate(values) if is_poison(value)] == [500, 1500]
    contents = Source(count=2000).measure()
    assert {contents.hashes[500], contents.hashes[1500]} == contents.poison


def test_no_two_made_messages_have_one_hash() -> None:
    contents = Source(count=5000).measure()
    assert len(set(contents.hashes)) == len(contents) == 5000


def test_lines_of_a_file_are_measured_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\r\n\n" + b"x" * 2_000_000 + b'\n{"poison":true}')
    contents = Source(file=str(file)).measure()
    wanted = [b"one", b"", b"x" * 2_000_000, b'{"poison":true}']
    assert list(contents.hashes) == [int.from_bytes(content_hash(value), "big") for value in wanted]
    assert not contents.poison


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"", "holds no lines"), (b"a\n" + b"x" * (16 << 20), "line 2 .* has 16777216 bytes"), (None, "cannot be read")],
)
def test_a_file_that_cannot_be_sent_is_refused(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    file = tmp_path / "lines"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Invalid, match=complaint):
        Source(file=str(file)).measure()


def test_no_messages_are_refused() -> None:
    with pytest.raises(Invalid, match="without messages"):
        Source(count=0).measure()


@pytest.mark.parametrize(("count", "queues"), [(1, 8), (7, 3), (8, 8), (100, 1)])
def test_queue_lengths_are_those_of_dealing_out(count: int, queues: int) -> None:
    lengths = Contents(Source(count=count).measure().hashes).queue_lengths(queues)
    assert lengths == [sum(1 for number in range(count) if number % queues == queue_id) for queue_id in range(queues)]
