"""Claim: a replica of the tables on S3 has each version that the tables have, and other programs read it there.

Method: moto's S3 server here and s3fs, which users install; delta-rs, which has a client of its own, reads the bucket.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from connectors.delta.compaction import compact
from connectors.delta.tables import DELIVERIES
from pipelines.process import table_replica
from pipelines.process.tables_replica import TablesReplica
from popstream.wire.base_errors import Unavailable
from tests.cluster.s3.conftest import ENVIRONMENT
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import append_audit_rows, create_table
from tests.support.s3_server import BUCKET, SECRET

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.s3_server import S3Server

URL = f"s3://{BUCKET}/tables"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create_table(tmp_path, "deliveries")
    append(tmp_path, 0)
    return tmp_path


@pytest.fixture
def replica(root: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> TablesReplica:
    """With s3fs from the environment of the server, and what an operator sets for it."""
    (packages,) = ENVIRONMENT.glob("lib/python*/site-packages")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])  # behind what the project itself has locked
    for name, value in access(s3).items():
        monkeypatch.setenv(name, value)
    return replica_of(root, URL)


def access(s3: S3Server) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "access",
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def replica_of(root: Path, url: str) -> TablesReplica:
    return TablesReplica(root, url, lambda table: DeltaTable(table).create_checkpoint())


def append(root: Path, seq: int) -> None:
    append_audit_rows(root, "deliveries", [delivery(seq, number, NOW_MS) for number in range(2)])


def rows(table: DeltaTable) -> list[dict[str, Any]]:
    return sorted(table.to_pyarrow_table().to_pylist(), key=repr)


def require_same(root: Path, s3: S3Server) -> None:
    there = DeltaTable(f"{URL}/deliveries", storage_options={**access(s3), "AWS_ALLOW_HTTP": "true"})
    here = DeltaTable(root / "deliveries")
    assert (there.version(), rows(there)) == (here.version(), rows(here))


def test_it_has_each_version_that_the_tables_have(
    root: Path, replica: TablesReplica, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_replica, "SWEEP_S", 0.0)
    for step in range(1, 4):
        append(root, step)
        replica.catch_up()
        require_same(root, s3)
    compact(root, DELIVERIES)
    DeltaTable(root / "deliveries").create_checkpoint()
    replica.catch_up()
    require_same(root, s3)
    assert any(key.endswith(".checkpoint.parquet") for key in s3.keys("tables/deliveries/_delta_log/"))


def test_a_bucket_that_is_not_there_is_said_in_a_line_without_the_secret(
    root: Path,
    replica: TablesReplica,  # noqa: ARG001 - for its settings
) -> None:
    nowhere = replica_of(root, "s3://no-such-bucket/tables")
    with pytest.raises(Unavailable, match="deliveries cannot be copied to s3://no-such-bucket/tables: ") as raised:
        nowhere.catch_up()
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
