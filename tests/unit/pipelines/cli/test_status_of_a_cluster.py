"""What `popstream status` prints of a job on a cluster."""

from __future__ import annotations

import msgspec
import pytest

from pipelines.cli.state.status import show_status
from pipelines.control.cluster_report import ClusterReport, QueryReport, ShardReport
from pipelines.control.messages import Status, StatusRequest
from popstream.wire.base_errors import Invalid

SHARDS = [
    ShardReport(partition=0, next_offset=900, lag=3, recent=10),
    ShardReport(partition=1, next_offset=5_000, lag=1_200, recent=70),
    ShardReport(partition=2, next_offset=10, lag=0, recent=10),
]
QUERY = QueryReport(
    name="decide_ops",
    spark_batch_id=41,
    records=1_500,
    seconds=0.25,
    at_ms=1_896_000_000_000,
    behind=1_203,
    state_keys=12_345,
    state_bytes=3_000_000,
)
CLUSTER = ClusterReport(
    master="spark://a:7077", tables="s3a://b/tables", shards=SHARDS, skew=2.33, queries=[QUERY], audit_failures=2
)
STATUS = Status(running=True, pid=7, folder="s3a://b/orders", apply_seq=42, prefix="orders", ops_lag=1_203)


def printed(capsys: pytest.CaptureFixture[str], status: Status) -> str:
    show_status(status, StatusRequest(), as_json=False)
    return " ".join(capsys.readouterr().out.split())


def test_it_has_the_queries_and_the_shard_that_lags_most(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, msgspec.structs.replace(STATUS, cluster=CLUSTER))
    assert "checkpoint s3a://b/orders" in text
    assert "cluster spark://a:7077, tables in s3a://b/tables" in text
    assert "shards 3, the greatest lag is 1,200 records in partition 1; busiest is partition 1, with 2.33 times" in text
    assert "query decide_ops micro-batch 41 of 1,500 records in 0.25 s, at 2030-01-30" in text
    assert "1,203 records behind; state of 12,345 keys, 3.0 MB in memory" in text
    assert "has failed 2 times" in text


def test_of_a_checkpoint_alone_it_says_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    shards = [msgspec.structs.replace(shard, lag=None, recent=0) for shard in SHARDS]
    status = msgspec.structs.replace(STATUS, running=False, ops_lag=None, cluster=ClusterReport(shards=shards))
    text = printed(capsys, status)
    assert "shards 3" in text
    assert "cluster" not in text
    assert "lag" not in text


def test_a_group_that_is_not_there_is_refused() -> None:
    with pytest.raises(Invalid, match="no queue has a lane of a group g"):
        show_status(msgspec.structs.replace(STATUS, cluster=CLUSTER), StatusRequest(group="g"), as_json=False)
