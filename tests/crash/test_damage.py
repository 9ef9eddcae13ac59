"""Claim: whatever file of a stopped job is damaged, what is printed then names the command that heals it.

Method: a job has decided what clients sent, and stopped; its tables have a checkpoint each. One seed chooses files of
each kind, and a damage for each. Then only what messages say is done: a start, or the verification, names a command,
`popstream restore`, perhaps with a table or a snapshot, and the runbook of docs/reliability.md has the message. In the
end state and rows are those of a fresh job over the same log, byte for byte. A snapshot, a hint or a file that RocksDB
does without may be damaged unnoticed.

TEST_DAMAGES says how many: 12 by default, 200 by `make crash`. Files of the builder's store are damaged by
tests/unit/broker_state/store/test_damaged_files.py, job.json by tests/unit/checkpoints/test_damaged_hints.py.
"""

from __future__ import annotations

import collections
import itertools
import os
import random
import re
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from connectors.delta.tables import AUDIT_TABLES, table_path
from pipelines.cli.exits import Exit, exit_code
from pipelines.recovery.replaced_files import move_tables_away
from popstream.wire.base_errors import PopstreamError
from tests.support.harms import HARMS
from tests.support.in_process.restore_scene import RestoreScene
from tests.support.runbook import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from checkpoints.layout import JobFolder
    from connectors.kafka.embedded import EmbeddedKafka

DAMAGES = int(os.environ.get("TEST_DAMAGES", "12"))
COMMAND = re.compile("`popstream restore([^`]*)`")
STEPS_MAX = 5
"""Messages to follow until a damage is healed; one or two in practice."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 90 * DAMAGES)]


def kinds(folder: JobFolder) -> Iterator[tuple[str, list[list[Path]]]]:
    """Yield each kind of file, and the choices of it: groups of files that are damaged together."""
    for pattern in ("*.sst", "*.log", "MANIFEST-*", "CURRENT", "OPTIONS-*"):
        yield f"state {pattern}", _each(folder.state.glob(pattern))
    for part in ("files", "manifests"):
        stored = _each((folder.snapshots / part).iterdir())
        yield f"snapshots {part}", stored
        # Without a state a restore reads them.
        yield f"state CURRENT and snapshots {part}", [[folder.state / "CURRENT", *files] for files in stored]
    logs = [table_path(folder.delta, table) / "_delta_log" for table in AUDIT_TABLES]
    commits = [sorted(log.glob("*.json")) for log in logs]
    yield "first commit", [[files[0]] for files in commits]
    yield "middle commit", [[files[len(files) // 2]] for files in commits]
    yield "last commit", [[files[-1]] for files in commits]
    yield "two commits in a row", [files[-3:-1] for files in commits if len(files) > 2]
    yield "checkpoint", [_each(log.glob("*.checkpoint*"))[-1] for log in logs]
    yield "_last_checkpoint", [[log / "_last_checkpoint"] for log in logs]
    yield "data file", _each(folder.delta.glob("*/op_date=*/*.parquet"))
    for file in (folder.attempts, folder.lock):
        yield file.name, [[file]]


def _each(files: Iterator[Path]) -> list[list[Path]]:
    return [[file] for file in sorted(files)]


@pytest.fixture(scope="module")
def played(spark: SparkSession, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> RestoreScene:
    scene = RestoreScene(spark, kafka.bootstrap_servers, tmp_path_factory.mktemp("played"))
    scene.play()
    jvm: Any = spark._jvm
    for table in AUDIT_TABLES:
        path = str(table_path(scene.folder.delta, table))
        jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path).checkpoint()
    shutil.rmtree(scene.folder.root / "image")
    return scene


class Healer:
    """Starts a job in a damaged folder, and does what messages say."""

    def __init__(self, scene: RestoreScene) -> None:
        self.scene = scene
        self.said: list[str] = []

    def heal(self) -> None:
        for _ in range(STEPS_MAX):
            try:
                self.scene.drain()
                found = self.scene.verify()
            except PopstreamError as error:
                self._follow(error)
                continue
            if not found.differences:
                return
            self.said += found.differences
            self._act("\n".join(found.differences))
        raise AssertionError(self.said)

    def _follow(self, error: PopstreamError) -> None:
        self.said.append(error.message)
        assert exit_code(error) == Exit.CORRUPT, error
        assert "\n" not in error.message.strip(), error
        assert row_of(error.message) is not None, f"the runbook has no row for: {error.message}"
        self._act(str(error))

    def _act(self, said: str) -> None:
        commands = [shlex.split(command) for command in COMMAND.findall(said)]
        assert commands, said
        given = dict(zip(commands[0][::2], commands[0][1::2], strict=True))
        assert given.keys() <= {"--rebuild", "--snapshot"}, said
        move_tables_away(self.scene.folder, [given["--rebuild"]] if "--rebuild" in given else [])
        forget_tables(self.scene.spark)
        try:
            self.scene.restore(only=given.get("--snapshot"))
        except PopstreamError as error:
            self._follow(error)


def forget_tables(spark: SparkSession) -> None:
    """As a new process does."""
    spark.catalog.clearCache()
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def test_damages_of_one_seed(played: RestoreScene, tmp_path: Path) -> None:
    chance = random.Random(DAMAGES)
    order = [(number, harm) for harm in HARMS for number in range(len(list(kinds(played.folder))))]
    chance.shuffle(order)
    outcomes: collections.Counter[str] = collections.Counter()
    for number, harm in itertools.islice(itertools.cycle(order), DAMAGES):
        scene = played.copied(tmp_path / f"damage-{sum(outcomes.values())}")
        kind, choices = list(kinds(scene.folder))[number]
        victims = chance.choice(choices)
        for victim in victims:
            harm(victim, chance)
        forget_tables(scene.spark)
        where = f"{harm.__name__} of {kind}: {[str(file.relative_to(scene.folder.root)) for file in victims]}"
        healer = Healer(scene)
        try:
            healer.heal()
            scene.compare_with_a_fresh_job()
        except BaseException as error:
            error.add_note(f"{where}\n" + "\n".join(healer.said))
            raise
        outcomes["healed by what was said" if healer.said else "without effect"] += 1
        print(f"{where}: {healer.said or 'without effect'}")
        if scene.root != scene.fresh_job().root.parent:
            shutil.rmtree(scene.root)
    print(dict(outcomes))
    assert sum(outcomes.values()) == DAMAGES
    assert outcomes["healed by what was said"] >= DAMAGES // 4
