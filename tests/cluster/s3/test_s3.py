"""Claims: checkpoint, state and table of a job can be on S3, each row is there once after its driver was killed, and no
log has the credentials; one of two writers makes a `NewFile`, where with a plain create the later replaces the other.

Method: moto's S3 server here, a standalone cluster, jobs whose executors read and write the bucket.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connectors.jars.resolve import s3_jars
from connectors.local_servers.process_tree import kill_tree
from tests.cluster.conftest import ROOT
from tests.cluster.s3.counting_job import BATCHES, RESTS, ROWS_PER_BATCH
from tests.support.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connectors.spark_cluster.standalone import StandaloneCluster
    from tests.cluster.conftest import Submitter

BUCKET = "popstream-test"
SECRET = "secret-that-no-log-may-have"  # noqa: S105 - it opens a server of the test
SERVER = ROOT / "var" / "s3-server" / "bin" / "moto_server"
WAIT_S = 900


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(SERVER, tmp_path_factory.mktemp("s3"), BUCKET) as server:
        yield server


@pytest.fixture
def settings(s3: S3Server, tmp_path: Path) -> Path:
    file = tmp_path / "job.toml"
    file.write_text(
        f"""
        [hadoop_conf]
        "fs.s3a.endpoint" = "{s3.endpoint}"
        "fs.s3a.endpoint.region" = "us-east-1"
        "fs.s3a.path.style.access" = "true"
        "fs.s3a.access.key" = "access"
        "fs.s3a.secret.key" = "{SECRET}"
        """
    )
    return file


def test_state_checkpoint_and_table_are_on_s3_and_complete_after_a_killed_driver(
    cluster: StandaloneCluster, submitter: Submitter, s3: S3Server, settings: Path
) -> None:
    url, jars = f"s3a://{BUCKET}/counting", s3_jars(ROOT / "var")
    job = ("tests.cluster.s3.counting_job", str(settings), url)
    with submitter.started(*job, jars=jars) as killed:
        deadline_s = time.monotonic() + WAIT_S
        while not s3.keys("counting/checkpoint/commits/0"):
            assert time.monotonic() < deadline_s
            assert killed.poll() is None, killed.communicate()
            time.sleep(1)
        kill_tree(killed.pid)
        out, err = killed.communicate()
    done = submitter.run(*job, jars=jars)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    batches, greatest = done.stdout.splitlines()[-2:]
    count = int(batches.removeprefix("batches "))
    assert count >= BATCHES + 1
    # Each micro-batch adds as many numbers to every rest, and writes a row for each.
    assert greatest == f"greatest {count * ROWS_PER_BATCH // RESTS} rows {count * RESTS}"
    assert [key for key in s3.keys("counting/checkpoint/state/0/") if key.endswith(".changelog")]
    assert len([key for key in s3.keys("counting/table/_delta_log/") if key.endswith(".json")]) == count
    logs = [path.read_text(errors="replace") for path in cluster.folder.rglob("*") if path.name in {"stderr", "stdout"}]
    assert logs
    everything = "\n".join([*logs, out, err, done.stdout, done.stderr])
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
