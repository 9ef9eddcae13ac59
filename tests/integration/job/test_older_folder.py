"""A folder written by an earlier version continues: state, log, tables and receipt handles.

`tests/data/job_folder_0_1_0.tar.xz` is what version 0.1.0 (commit 049613c) left behind: the job's folder with its
embedded Kafka, all topics without retention, a snapshot, and `facts.json` with what its clients held. It has acked,
rejected, changed and expired leases, an orderly lane with part of a pop acked, an inner batch, and a policy.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from deltalake import DeltaTable

from connectors.delta.duckdb_tables import DuckDbTables
from connectors.delta.snapshot import open_snapshot
from popstream import Consumer, Producer, Receipt, ReceiptHandle, all_applied
from tests.support.left_behind import table_rows
from tests.support.older_folder import unpack_older_folder
from tests.support.processes.job_process import ROOT
from tests.support.processes.up_process import Up, run, run_for, status_of
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

RECORDS = 25


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("older")
    return unpack_older_folder(root)


@pytest.fixture(scope="module")
def facts(folder: Path) -> dict[str, Any]:
    return msgspec.json.decode((folder / "facts.json").read_bytes(), type=dict[str, Any])


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    with started(folder) as up:
        yield up


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Up]:
    up = Up(folder, "--flush-interval", "500ms", "--kafka-port", "0")
    try:
        up.wait_for("ready after")
        yield up
    finally:
        up.end()


def verified(up: Up) -> dict[str, Any]:
    done = run(up, "verify", "--json", "--var", str(ROOT / "var"))
    assert done.returncode == 0, done.stdout + done.stderr
    return msgspec.json.decode(done.stdout, type=dict[str, Any])


def commit_offsets(up: Up) -> dict[tuple[str, int, str], int]:
    """By topic, queue and group."""
    return {
        (queue["topic"], queue["queue_id"], lane["group"]): lane["commit_offset"]
        for queue in status_of(up)["queues"]
        for lane in queue["lanes"]
    }


def receipts(held: list[dict[str, Any]]) -> list[Receipt]:
    return [
        Receipt(
            topic=one["topic"],
            queue_id=one["queue_id"],
            queue_offset=one["queue_offset"],
            handle=ReceiptHandle(one["handle"]),
        )
        for one in held
    ]


def test_the_log_is_decided_again_with_equal_bytes_and_rows(up: Up) -> None:
    found = verified(up)
    assert found["differences"] == []
    assert found["records"] >= RECORDS
    assert all(found["rows"][table] for table in ("operations", "deliveries", "commit_positions", "order_info"))


def test_handles_of_before_ack_and_leases_go_on(up: Up, facts: dict[str, Any]) -> None:
    servers = status_of(up)["bootstrap_servers"]
    with Producer(servers) as producer:
        producer.send("orders", b"a new one", queue_id=0).result(60)
    with Consumer(servers, group="billing", client_id="worker-1") as consumer:
        assert all_applied(consumer.ack(receipts(facts["leased"])))
        again = list(consumer.pop("orders", queue_id=1, max_messages=4, invisible_time_ms=60_000, poll_time_ms=30_000))
        assert [(m.queue_offset, m.attempt) for m in again] == [(offset, 2) for offset in facts["expired"]]
        assert [m.value for m in again] == [b"order 1", b"order 3", b"order 5", b"order 7"]
        assert all_applied(consumer.ack(again))
    with Consumer(servers, group="ledger", client_id="worker-2") as consumer:
        assert all_applied(consumer.ack(receipts(facts["orderly"])))
        following = list(
            consumer.pop(
                "orders", queue_id=0, max_messages=3, invisible_time_ms=60_000, order=True, poll_time_ms=30_000
            )
        )
        assert [m.queue_offset for m in following] == [5, 6, 7]
    committed = commit_offsets(up)
    assert committed["orders", 0, "billing"] == 8
    assert committed["orders", 1, "billing"] == 4
    assert committed["orders", 0, "ledger"] == 5


def test_the_tables_go_on(up: Up) -> None:
    """By their files: they hold the rows of the earlier version and those of this one."""
    delta = up.folder / "delta"
    wait_for(lambda: max(row["attempt"] for row in table_rows(delta, "deliveries")) == 2)
    assert sum(row["step"] == "dead_lettered" for row in table_rows(delta, "deliveries")) == 1
    assert len(table_rows(delta, "consume_queue")) >= 41


def test_the_tables_have_the_columns_of_this_version(up: Up) -> None:
    """Rows of the earlier one lack the timestamps; those written since have them, and every reader sees the columns."""
    delta = up.folder / "delta"
    wait_for(lambda: max(row["attempt"] for row in table_rows(delta, "deliveries")) == 2)
    moments = DeltaTable(delta / "deliveries").to_pyarrow_table(columns=["now_ms", "now_utc"]).to_pylist()
    earlier = [row for row in moments if row["now_utc"] is None]
    since = [row for row in moments if row["now_utc"] is not None]
    assert max(row["now_ms"] for row in earlier) < min(row["now_ms"] for row in since)
    assert all(row["now_utc"].timestamp() * 1000 == row["now_ms"] for row in since)
    with DuckDbTables([open_snapshot(delta / name) for name in ("deliveries", "operations")]) as tables:
        ((ended,),) = tables.rows("SELECT count(*) FROM lease_ends WHERE holder IS NOT NULL")
    assert ended


def test_the_snapshot_of_before_the_upgrade_leads_to_the_same_state(up: Up) -> None:
    """`popstream restore --snapshot` goes back to it, and the next start decides the rest again, to the same rows."""
    committed = commit_offsets(up)
    code, left = up.stop(signal.SIGTERM)
    assert (code, left) == (0, [])
    # The job may have taken one of its own meanwhile.
    manifest = min((up.folder / "snapshots" / "manifests").iterdir(), key=lambda file: file.stat().st_mtime)
    done = run_for(up.folder, "restore", "--json", "--snapshot", manifest.stem, "--var", str(ROOT / "var"))
    assert done.returncode == 0, done.stderr
    restored = msgspec.json.decode(done.stdout, type=dict[str, Any])
    assert restored["source"] == f"snapshot {manifest.stem}"
    assert restored["to_replay"] > 0
    with started(up.folder) as again:
        wait_for(lambda: commit_offsets(again) == committed)
        assert verified(again)["differences"] == []
