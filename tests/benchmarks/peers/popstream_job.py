"""popstream: the job as `popstream up` runs it, with the broker that the share groups have."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.peers.contender import Contender, PeerOptions
from tests.benchmarks.peers.peer_process import PeerProcess
from tests.benchmarks.peers.share_groups import peer_kafka
from tests.support.processes.job_process import POPSTREAM

__all__ = ["POPSTREAM_JOB"]

PREFETCH = 20_000
SET_SIZE = 1_000
READY = "ready after"


@contextlib.contextmanager
def _serve(options: PeerOptions, folder: Path) -> Iterator[list[str]]:
    with peer_kafka(options, folder) as servers:
        up = [str(POPSTREAM), "up", "--folder", str(folder / "job"), "--var", str(options.var), "--message-topics", "*"]
        with PeerProcess("job", [*up, "--bootstrap-servers", servers], folder) as job:
            job.wait_until(lambda: any(READY in line for line in job.new_lines()))
            load = [sys.executable, "-m", "tests.benchmarks.peers.popstream_load", "--bootstrap", servers]
            yield [*load, "--prefetch", str(PREFETCH), "--set-size", str(SET_SIZE)]


POPSTREAM_JOB = Contender(
    name="popstream",
    label="popstream",
    forms={
        "loop": "pop of 32 from any queue, ack of each message, all outcomes awaited",
        "each": "run with one worker and the default prefetch; ack of each message",
        "bulk": f"run_sets of at most {SET_SIZE:,}, prefetch {PREFETCH:,}; the messages of a call are acked together",
        "paced": "the same; sent by a producer that knows nothing of the job, which makes the messages poppable",
    },
    durability=(
        "a killed broker or job: nothing; a power failure: no ack, for decisions are synced before they are answered,"
        " but messages of the last seconds, which Kafka has in the page cache; if it also lost operations, the job"
        " starts only after a repair"
    ),
    messages=350_000,
    prepare=lambda _: None,
    serve=_serve,
)
