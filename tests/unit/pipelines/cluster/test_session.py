"""What a session of a cluster begins with."""

from pathlib import Path
from xml.etree import ElementTree as ET

from pipelines.cluster.checkpoint_layout import AUDIT, BUILD_UNITS, DECIDE_OPS
from pipelines.cluster.session import CLUSTER_CONF
from pipelines.cluster.watch.cluster_answers import POOL


def test_deciding_may_have_all_cores_but_one_for_each_other_query() -> None:
    file = Path(CLUSTER_CONF["spark.scheduler.allocation.file"].removeprefix("file://"))
    shares = {pool.get("name"): int(pool.findtext("minShare", "0")) for pool in ET.parse(file).iter("pool")}  # noqa: S314 - our own
    assert shares.pop(DECIDE_OPS) >= 1_000_000, "more than any cluster has cores"
    assert shares == {AUDIT: 1, BUILD_UNITS: 1, POOL: 1}
