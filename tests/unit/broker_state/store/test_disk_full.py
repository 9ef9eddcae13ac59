"""Claim: on a full disk a micro-batch is not written, no write is torn, and work continues once there is space.

Method: a process of its own whose files may not grow beyond a limit, which is how a full volume looks to the process
that writes: the system refuses the write in the middle. It writes WriteBatches of two keys each until one is refused,
and reports their count; then it ends as the job does, and another process opens the state without the limit.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker_state.store.overlay import STATE
from broker_state.store.rocks_store import RocksStore

ROOT = Path(__file__).parents[4]
WRITER = """
import resource, signal, sys
from pathlib import Path
from broker_state.store.overlay import STATE
from broker_state.store.rocks_store import RocksStore, StoreStopped

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = RocksStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
written = 0
while True:
    number = b"%08d" % written
    try:
        store.write_changes([(STATE, b"one " + number, number * 100), (STATE, b"two " + number, number * 100)])
    except StoreStopped as error:
        print(written, error, flush=True)
        break
    written += 1
"""


@pytest.mark.parametrize("limit_bytes", [100_000, 1_234_567])
def test_disk_full_on_the_state_volume(tmp_path: Path, limit_bytes: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path), str(limit_bytes)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    count, _, why = done.stdout.partition(" ")
    assert "the write failed" in why, done.stderr
    assert int(count) > 10
    with RocksStore(tmp_path) as store:
        wanted = {f"{key} {number:08d}".encode() for number in range(int(count)) for key in ("one", "two")}
        assert {key for key, _ in store.scan(STATE, b"")} == wanted
        store.write_changes([(STATE, b"there is room", b"again")])
    with RocksStore(tmp_path) as store:
        assert store.get(STATE, b"there is room") == b"again"
