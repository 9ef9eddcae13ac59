"""Claim: a damaged file of a table's log is `Corrupt`, with the table, the file and the advice, or changes nothing.

Method: a table that Spark wrote (of the folder that version 0.1.0 left behind), and a checkpoint that is written by
hand, with checksums of its pages as those that Spark writes. Each file is damaged in each way; then everything that
reads the log without Spark reads it.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.delta.log.commits import commits_after, commits_back_from, read_commit
from connectors.delta.log.table_log import checkpoint_damage, read_data_files, read_table_log
from connectors.delta.restore_queries import whole_versions
from connectors.delta.store import require_columns
from connectors.delta.tables import AUDIT_TABLES
from popstream.wire.base_errors import Corrupt
from tests.support.flipped_byte import noticed_flips
from tests.support.left_behind import damage
from tests.support.older_folder import unpack_older_folder

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "operations"
NEWEST = 3
VALID_JSON = ["[]", "5", "null", '{"txn":[]}', '{"add":{"path":7}}', '{"txn":{"appId":"x"}}', '{"metaData":"x"}']


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Delta folder as it was left behind."""
    folder = tmp_path_factory.mktemp("left behind")
    return unpack_older_folder(folder, f"job/delta/{NAME}/") / "delta"


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "delta")


def commit(root: Path, version: int) -> Path:
    return root / NAME / "_delta_log" / f"{version:020d}.json"


def read_everything(root: Path) -> list[Any]:
    table = root / NAME
    return [
        read_table_log(table),
        read_data_files(table),
        list(commits_back_from(table, NEWEST)),
        commits_after(table, 0),
        whole_versions(root, NAME, "apply_ops"),
    ]


def flip(file: Path) -> None:
    damage(file, file.stat().st_size // 2)


def flip_to_other_json(file: Path) -> None:
    file.write_text(file.read_text().replace("1", "2"))


def truncate(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def overwrite(file: Path) -> None:
    file.write_bytes(random.Random(2).randbytes(file.stat().st_size))


def not_utf8(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"operation":"', b'"operation":"\xff\xfe', 1))


def not_utf8_where_nobody_looks(file: Path) -> None:
    """A decoder may skip what it does not want; Spark refuses the file."""
    data = file.read_bytes()
    assert b'"engineInfo":"' in data
    file.write_bytes(data.replace(b'"engineInfo":"', b'"engineInfo":"\xff\xfe', 1))


def swap(file: Path) -> None:
    other = next(path for path in sorted(file.parent.glob("*.json")) if path != file)
    file.write_bytes(other.read_bytes())


def remove(file: Path) -> None:
    file.unlink()


DAMAGES = (flip, flip_to_other_json, truncate, overwrite, not_utf8, not_utf8_where_nobody_looks, swap)


def require_named(error: Corrupt, file: Path) -> None:
    assert NAME in error.message
    assert file.name in error.message or str(int(file.stem)) in error.message
    assert error.message.endswith(f"bring it back from a copy, or run `popstream restore --rebuild {NAME}`")
    assert "\n" not in error.message


@pytest.mark.parametrize("with_checksums", [True, False], ids=["with checksums", "without checksums"])
@pytest.mark.parametrize("harm", DAMAGES)
@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_a_damaged_commit(root: Path, version: int, harm: Callable[[Path], None], *, with_checksums: bool) -> None:
    file = commit(root, version)
    if not with_checksums:
        file.with_name(f".{file.name}.crc").unlink()
    harm(file)
    if harm in {flip, flip_to_other_json, swap} and not with_checksums:  # it may still be JSON: nothing shows it
        with contextlib.suppress(Corrupt):
            read_everything(root)
        return
    for read in (read_table_log, read_data_files, lambda table: read_commit(table, version)):
        with pytest.raises(Corrupt) as raised:
            read(root / NAME)
        require_named(raised.value, file)


@pytest.mark.parametrize("text", VALID_JSON)
def test_a_commit_of_another_shape(root: Path, text: str) -> None:
    file = commit(root, 2)
    file.with_name(f".{file.name}.crc").unlink()
    file.write_text(file.read_text() + text + "\n")
    for read in (read_table_log, lambda table: read_commit(table, 2)):
        with pytest.raises(Corrupt) as raised:
            read(root / NAME)
        require_named(raised.value, file)


@pytest.mark.parametrize(
    "text",
    [
        '{"commitInfo":{"operation":"RESTORE","operationParameters":{"version":"x"}}}',
        '{"add":{"path":"a","size":1,"modificationTime":1,"partitionValues":{},"stats":"{}"}}',
        '{"add":{"path":"a","size":1,"modificationTime":1,"partitionValues":{},"stats":"{"}}',
    ],
)
def test_a_commit_with_a_damaged_value(root: Path, text: str) -> None:
    file = commit(root, 4)
    file.write_text(text + "\n")
    with pytest.raises(Corrupt) as raised:
        read_commit(root / NAME, 4)
    require_named(raised.value, file)


@pytest.mark.parametrize("versions", [[0], [1], [1, 2], [2]])
def test_missing_commits_below_the_newest(root: Path, versions: list[int]) -> None:
    for version in versions:
        commit(root, version).unlink()
    with pytest.raises(Corrupt, match=f"the log of {NAME} lacks version {versions[0]}, and has 3: bring it back"):
        read_table_log(root / NAME)


def test_an_empty_commit_is_one_that_a_power_loss_took(root: Path) -> None:
    before = read_table_log(root / NAME)
    commit(root, 4).write_bytes(b"")
    after = read_table_log(root / NAME)
    assert before is not None
    assert after is not None
    assert (after.version, after.txns) == (4, before.txns)


def write_table_checkpoint(root: Path, version: int) -> Path:
    """Write a classic checkpoint, with the actions up to a version as Delta has them."""
    texts = [commit(root, number).read_text().splitlines() for number in range(version + 1)]
    actions = [json.loads(line) for lines in texts for line in lines]
    rows = [
        {kind: action.get(kind) for kind in ("txn", "metaData", "protocol", "add", "remove")}
        for action in actions
        if "commitInfo" not in action
    ]
    for row in rows:
        if row["metaData"]:
            row["metaData"]["configuration"] = list(row["metaData"]["configuration"].items())
        if row["add"]:
            row["add"]["partitionValues"] = list(row["add"]["partitionValues"].items())
    text_map = pa.map_(pa.string(), pa.string())
    whole, text = pa.int64(), pa.string()
    schema = pa.schema(
        {
            "txn": pa.struct({"appId": text, "version": whole}),
            "metaData": pa.struct({"schemaString": text, "configuration": text_map}),
            "protocol": pa.struct(
                {
                    "minReaderVersion": pa.int32(),
                    "minWriterVersion": pa.int32(),
                    "readerFeatures": pa.list_(text),
                    "writerFeatures": pa.list_(text),
                }
            ),
            "add": pa.struct(
                {"path": text, "partitionValues": text_map, "size": whole, "modificationTime": whole, "stats": text}
            ),
            "remove": pa.struct({"path": text}),
        }.items()
    )
    file = commit(root, version).with_suffix(".checkpoint.parquet")
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table, file, compression="zstd", write_page_checksum=True, write_statistics=False)
    return file


@pytest.mark.parametrize("harm", [flip, truncate, overwrite, swap, remove])
def test_a_damaged_checkpoint(root: Path, harm: Callable[[Path], None]) -> None:
    """Nothing is lost as long as the commits before it are there; otherwise the checkpoint is named."""
    before = read_everything(root)
    file = write_table_checkpoint(root, 2)
    commit(root, 0).rename(root / "kept")
    assert read_table_log(root / NAME) == before[0]
    assert read_data_files(root / NAME) == before[1]
    harm(file)
    for read in (read_data_files,) if harm is flip else (read_table_log, read_data_files):  # it hits an add action
        with pytest.raises(Corrupt) as raised:
            read(root / NAME)
        require_named(raised.value, file if harm is not remove else commit(root, 0))
    (root / "kept").rename(commit(root, 0))
    assert read_everything(root) == before
    if harm is not remove:  # Spark fails all the same
        damage_found = checkpoint_damage(root / NAME)
        assert damage_found is not None
        require_named(damage_found, file)


def test_a_flipped_bit_of_any_byte_of_a_checkpoint_is_noticed_or_changes_nothing(root: Path) -> None:
    """Pages have checksums. The footer has none: what it says of columns, sizes and places has to be true instead."""
    file = write_table_checkpoint(root, NEWEST)
    commit(root, 0).unlink()
    size = file.stat().st_size
    footer = size - pq.read_metadata(file).serialized_size - 8
    bits = (8 * place + place % 8 for place in range(0, size, 7))  # in each byte it takes ten seconds
    noticed = noticed_flips(file, bits, lambda: read_data_files(root / NAME))
    assert sum(place < footer for place in noticed) > 0.9 * footer / 7


@pytest.mark.parametrize("leave_out", ["features", "stats, as structs are there", "stats, as a property says"])
def test_a_checkpoint_may_lack_what_the_format_makes_optional(root: Path, leave_out: str) -> None:
    before, files = read_table_log(root / NAME), read_data_files(root / NAME)
    file = write_table_checkpoint(root, NEWEST)
    commit(root, 0).unlink()
    table = pq.read_table(file)
    rows = table.to_pylist(maps_as_pydicts="strict")
    kind = "protocol" if leave_out == "features" else "add"
    dropped = ("readerFeatures", "writerFeatures") if leave_out == "features" else ("stats",)
    for row in rows:
        for name in dropped if row[kind] else ():
            del row[kind][name]
        if row["metaData"] and "property" in leave_out:
            row["metaData"]["configuration"] = {"delta.checkpoint.writeStatsAsJson": "false"}
    fields = [field for field in table.schema.field(kind).type if field.name not in dropped]
    if "structs" in leave_out:
        fields.append(pa.field("stats_parsed", pa.struct({"numRecords": pa.int64()})))
    schema = pa.schema([pa.field(f.name, pa.struct(fields) if f.name == kind else f.type) for f in table.schema])
    pq.write_table(pa.Table.from_pylist(rows, schema), file)
    found = read_data_files(root / NAME)
    assert found is not None
    assert files is not None
    assert [each.path for each in found.files] == [each.path for each in files.files]
    if "property" not in leave_out:
        assert read_table_log(root / NAME) == before


def test_a_protocol_that_must_have_features_and_has_none_is_damage(root: Path) -> None:
    file = write_table_checkpoint(root, NEWEST)
    commit(root, 0).unlink()
    table = pq.read_table(file)
    rows = table.to_pylist(maps_as_pydicts="strict")
    for row in rows:
        if row["protocol"]:
            row["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7}
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)
    with pytest.raises(Corrupt, match="its protocol has no features"):
        read_table_log(root / NAME)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", None])
def test_the_pointer_to_the_last_checkpoint_is_not_needed(root: Path, content: bytes | None) -> None:
    before = read_everything(root)
    write_table_checkpoint(root, 2)
    if content is not None:
        (root / NAME / "_delta_log" / "_last_checkpoint").write_bytes(content)
    assert read_everything(root) == before


def test_a_checkpoint_of_commits_that_are_lost(root: Path) -> None:
    """Delta cannot read such a table, and nothing but the checkpoint says what the lost commits had."""
    write_table_checkpoint(root, 3)
    for version in (2, 3):
        commit(root, version).unlink()
    with pytest.raises(Corrupt, match=f"the log of {NAME} lacks version 3, and has a checkpoint of it: bring it back"):
        read_table_log(root / NAME)


@pytest.mark.parametrize("content", [b"", b"crc", b"crc\0\0\0\2\0", b"\xff" * 24])
def test_a_commit_with_a_damaged_checksum_is_named(root: Path, content: bytes) -> None:
    """Spark refuses the file as well."""
    file = commit(root, 1)
    file.with_name(f".{file.name}.crc").write_bytes(content)
    with pytest.raises(Corrupt) as raised:
        read_table_log(root / NAME)
    require_named(raised.value, file)


@pytest.mark.parametrize("schema", ["", "{", "[]", "5", '{"fields":7}', '{"type":"struct","fields":[{"name":"x"}]}'])
def test_a_damaged_schema(root: Path, schema: str) -> None:
    with pytest.raises(Corrupt, match=f"the log of {NAME} is damaged: its columns cannot be read"):
        require_columns(root / NAME, AUDIT_TABLES[NAME], schema)
