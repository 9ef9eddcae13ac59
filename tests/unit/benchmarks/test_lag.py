"""`make bench PART=lag` waits until each dispatch is in the lag of all groups: here of a job without Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_state.store.rocks_store import RocksStore
from pipelines.control.lane_views import scan_queues
from pipelines.control.lane_watch import LaneWatch
from pipelines.control.metrics import Metrics
from pipelines.http_api.http_server import HttpServer, Listener
from pipelines.http_api.metrics_app import metrics_app
from tests.benchmarks.lag import Endpoint, time_lags
from tests.support.in_process.small_job import DECLARE, POP, SmallJob, written_to

if TYPE_CHECKING:
    from pathlib import Path


def test_a_dispatch_is_timed_until_all_groups_lag_by_it(tmp_path: Path) -> None:
    metrics = Metrics()
    app = metrics_app(metrics.registry, list)
    with RocksStore(tmp_path / "state") as store, HttpServer([Listener("127.0.0.1", 0, app, "metrics_port")]) as server:
        watch = LaneWatch(store, metrics.lanes, 10)
        watch.load(scan_queues(store))
        job = SmallJob(tmp_path, store, observe=watch.observe)
        job.run(DECLARE, written_to(0, 0), {**POP, "group": "a"}, {**POP, "group": "b"})
        watch.refresh()
        dispatched: list[int] = []

        def dispatch(queue_offset: int) -> None:
            dispatched.append(queue_offset)
            job.run(written_to(queue_offset, queue_offset))
            watch.refresh()

        endpoint = Endpoint(server.ports[0])
        figures = time_lags(endpoint, dispatch, queues=1, groups=2, tries=3, rest_s=0)
        assert dispatched == [1, 2, 3]
        assert endpoint.lags() == [4, 4]
        assert figures["scrapes"] == 3
        assert figures["scraped_bytes"] > 0
