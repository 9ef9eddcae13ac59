"""Claims: the cluster listens on loopback alone, replaces what is killed, says why it did not start, ends with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.local_servers.process_tree import command_line, descendants
from connectors.spark_cluster.standalone import StandaloneCluster
from popstream.wire.base_errors import Invalid, Unavailable
from tests.cluster.conftest import ROOT
from tests.support.threads import eventually

WAIT_S = 300
PARENT = """
import sys, time
from pathlib import Path
from connectors.spark_cluster.standalone import StandaloneCluster
cluster = StandaloneCluster(Path(sys.argv[1]), workers=1)
cluster.start()
print(cluster.worker_pid(0), flush=True)
time.sleep(600)
"""


def listening(pid: int) -> list[str]:
    """Addresses, in hexadecimal, on which a process listens."""
    own = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
        found += [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
    return found


def test_all_listen_on_loopback_only(cluster: StandaloneCluster) -> None:
    lines = {pid: command_line(pid) for pid in descendants(os.getpid())}
    classes = {"org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"}
    jvms = [pid for pid, line in lines.items() if "".join(line[:1]).endswith("java") and not classes.isdisjoint(line)]
    assert cluster.worker_pid(0) in jvms
    assert len(jvms) == 3  # a master and two workers
    addresses = [address for pid in jvms for address in listening(pid)]
    loopback = ("0100007F:", "0000000000000000FFFF00000100007F:")
    assert len(addresses) >= 6
    assert all(address.startswith(loopback) for address in addresses)


def test_a_killed_worker_is_gone_until_it_is_started_again(cluster: StandaloneCluster) -> None:
    pid = cluster.worker_pid(1)
    cluster.kill_worker(1)
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(Unavailable, match="worker 1 does not run"):
        cluster.worker_pid(1)
    cluster.start_worker(1)
    assert cluster.worker_pid(1) != pid
    with pytest.raises(Invalid, match="runs already"):
        cluster.start_worker(1)


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    broken = StandaloneCluster(tmp_path, workers=1, memory_mb=0)
    with pytest.raises(Unavailable, match=r"worker-0 ended while starting, with exit code 1; the end of") as caught:
        broken.start()
    assert any("memory" in line.lower() for line in caught.value.details)
    assert [pid for pid in descendants(os.getpid()) if str(tmp_path) in " ".join(command_line(pid))] == []


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert command_line(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait(WAIT_S)
    eventually(lambda: not command_line(pid))
