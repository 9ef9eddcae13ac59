"""`popstream verify` of a job that has decided many single operations: the log is decided again, all rows compared."""

import json
import resource
import subprocess
import time
from typing import Any

from connectors.kafka.embedded import EmbeddedKafka
from tests.benchmarks.benchmark_options import QUEUES, BenchOptions
from tests.benchmarks.drain import drain, fill
from tests.benchmarks.measured_operations import single_entry_ops
from tests.support.processes.job_process import POPSTREAM

__all__ = ["measure_verify"]

_PREFIX = "verify"


def measure_verify(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Drain operations of one entry with flushes beside, and verify them; the time includes that of the start."""
    messages = options.operations // 2 // QUEUES
    streams = [single_entry_ops("bench", queue_id, "group", messages, reply_to=queue_id) for queue_id in range(QUEUES)]
    records = fill(kafka, _PREFIX, "bench", messages, streams, options.on_progress)
    folder = options.work / _PREFIX
    drain(kafka, _PREFIX, folder, options.var, records, flush_interval_s=5.0)
    where = ["--folder", str(folder), "--bootstrap-servers", kafka.bootstrap_servers, "--prefix", _PREFIX]
    used_before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [POPSTREAM, "verify", *where, "--var", options.var, "--json"], check=True, stdout=subprocess.PIPE
    )
    took_s, used = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["records"] == records, f"{found['records']} of {records} records were decided again"
    cpu_s = used.ru_utime + used.ru_stime - used_before.ru_utime - used_before.ru_stime
    return {
        "records": records,
        "rows": sum(found["rows"].values()),
        "records_per_s": round(records / took_s),
        "cpu_us_a_record": round(cpu_s * 1e6 / records, 1),
    }
