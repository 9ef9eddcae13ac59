"""What a session of a cluster begins with."""

from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

from pipelines.cluster.checkpoint_layout import AUDIT, BUILD_UNITS, DECIDE_OPS
from pipelines.cluster.session import CLUSTER_CONF


def test_only_deciding_has_a_share_of_the_cores_that_is_its_own() -> None:
    file = Path(unquote(urlsplit(CLUSTER_CONF["spark.scheduler.allocation.file"]).path))
    shares = {pool.get("name"): pool.findtext("minShare") for pool in ET.parse(file).iter("pool")}  # noqa: S314 - our own
    assert shares.keys() == {DECIDE_OPS}
    assert int(shares[DECIDE_OPS] or 0) >= 1_000_000, "more than any cluster has cores"
    assert not shares.keys() & {AUDIT, BUILD_UNITS}
