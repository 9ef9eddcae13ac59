"""The messages of a demo: generated ones differ, and a file's lines arrive byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.demo.message_source import MessageSource, content_hash
from popstream.wire.base_errors import Invalid


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
def test_lines_of_a_file_are_messages(tmp_path: Path, text: bytes, lines: list[bytes]) -> None:
    file = tmp_path / "lines"
    file.write_bytes(text)
    assert list(MessageSource(file=str(file)).values()) == lines


def test_every_thousandth_message_is_poison() -> None:
    source = MessageSource(count=2000)
    assert [number for number, value in enumerate(source.values()) if source.is_poison(value)] == [500, 1500]
    assert source.measure(8).poison == {(500 % 8, 500 // 8), (1500 % 8, 1500 // 8)}


def test_no_two_generated_messages_have_one_hash() -> None:
    contents = MessageSource(count=5000).measure(8).contents
    assert len(set(contents.values())) == len(contents) == 5000


def test_lines_of_a_file_are_measured_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\r\n\n" + b"x" * 2_000_000 + b'\n{"poison":true}')
    contents, poison = MessageSource(file=str(file)).measure(2)
    wanted = [b"one", b"", b"x" * 2_000_000, b'{"poison":true}']
    assert contents == {(number % 2, number // 2): content_hash(value) for number, value in enumerate(wanted)}
    assert not poison


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"", "holds no lines"), (b"a\n" + b"x" * (16 << 20), "line 2 .* has 16777216 bytes"), (None, "cannot be read")],
)
def test_a_file_that_cannot_be_sent_is_refused(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    file = tmp_path / "lines"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Invalid, match=complaint):
        MessageSource(file=str(file)).measure(8)


def test_no_messages_are_refused() -> None:
    with pytest.raises(Invalid, match="without messages"):
        MessageSource(count=0).measure(8)
