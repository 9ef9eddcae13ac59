"""Claims: a job with its state, checkpoint and tables on S3 goes on after its driver was killed, its tables have each
decision once, `popstream verify` finds nothing there that the log does not lead to, and no log has the credentials; one
of two writers makes a `NewFile`, where with a plain create the later replaces the other.

Method: moto's S3 server here, a broker and a standalone cluster, whose executors read and write the bucket.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from connectors.jars.resolve import s3_jars
from connectors.local_servers.process_tree import kill_tree
from pipelines.recovery.verify import Verified
from tests.cluster.conftest import ROOT
from tests.cluster.submitted import WAIT_S, ops, popstream, settings_file, started, submit_command
from tests.support.s3_server import BUCKET, SECRET

if TYPE_CHECKING:
    from connectors.kafka.embedded import EmbeddedKafka
    from connectors.spark_cluster.standalone import StandaloneCluster
    from tests.cluster.conftest import Submitter
    from tests.support.s3_server import S3Server

QUEUE = {"topic": "orders", "queue_id": 0}


@pytest.fixture
def settings(s3: S3Server, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Path:
    more = f"""
        [hadoop_conf]
        "fs.s3a.endpoint" = "{s3.endpoint}"
        "fs.s3a.endpoint.region" = "us-east-1"
        "fs.s3a.path.style.access" = "true"
        "fs.s3a.access.key" = "access"
        "fs.s3a.secret.key" = "{SECRET}"
        """
    return settings_file(tmp_path, kafka.bootstrap_servers, topic_prefix, more)


def test_a_job_on_s3_goes_on_after_a_killed_driver_and_is_what_its_log_leads_to(
    cluster: StandaloneCluster,
    unpacked_environment: str,
    s3: S3Server,
    settings: Path,
    kafka: EmbeddedKafka,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    checkpoint = f"s3a://{BUCKET}/job"
    command = submit_command(settings, checkpoint, cluster, unpacked_environment)
    asked = ["--bootstrap-servers", kafka.bootstrap_servers, "--prefix", topic_prefix]
    declare = {"type": "declare", **QUEUE, "topic_id": "T"}
    dispatch = {"type": "dispatch", **QUEUE, "ranges": [{"first": 0, "last": 99}]}
    pop = {"type": "pop", **QUEUE, "group": "billing", "max_messages": 10, "invisible_time_ms": 600_000}
    with started(command, tmp_path) as driver:
        _, _, popped = ops(asked, declare, dispatch, pop)
        assert popped["messages"] == [[0, 9, 1]]
        kill_tree(driver.pid)
    with started(command, tmp_path) as driver:
        assert ops(asked, pop)[0]["messages"] == [[10, 19, 1]]
        driver.send_signal(signal.SIGTERM)
        out, _ = driver.communicate(timeout=WAIT_S)
        assert driver.returncode == 0, out[-3000:]

    done = popstream(
        "verify", "--json", "--checkpoint", checkpoint, "--settings", str(settings), "--var", str(ROOT / "var")
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = msgspec.json.decode(done.stdout, type=Verified)
    assert found.differences == []
    assert found.rows["operations"] >= 4, "an operation that was sent again has a row each time"
    assert not any(found.not_in_delta.values()), "a job that is stopped in order writes all that it has decided"
    assert [key for key in s3.keys("job/decide_ops/state/0/") if key.endswith(".changelog")]
    logs = [path.read_text(errors="replace") for path in cluster.folder.rglob("*") if path.name in {"stderr", "stdout"}]
    assert logs
    everything = "\n".join([*logs, out, done.stdout, done.stderr])
    assert [line.replace(SECRET, "...")[:300] for line in everything.splitlines() if SECRET in line] == []


def test_of_two_writers_one_makes_a_new_file_and_a_plain_create_does_not_tell(
    submitter: Submitter, settings: Path, tmp_path: Path
) -> None:
    jars = s3_jars(ROOT / "var")
    job = ("tests.cluster.s3.new_files_job", str(settings))
    done = submitter.run(*job, f"s3a://{BUCKET}/files", jars=jars)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.splitlines()[-3:] == ["claims True False False", "claim late", "plain second"]
    local = submitter.run(*job, f"file://{tmp_path}", jars=jars)
    assert "claims False True False" in local.stdout.splitlines()
    assert (tmp_path / "claim").read_bytes() == b"early"
    assert local.returncode != 0
    assert "FileAlreadyExistsException" in local.stdout + local.stderr
