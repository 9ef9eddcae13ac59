"""Claim: a file that is damaged under a running `popstream up` ends in a sentence whose command heals, as it is typed.

Method: one seed a damage. While the job decides what clients send, a file of its folder is damaged; the job may notice
or not, and is killed. From then on a shell gives the commands that are printed, nothing else: `up` refuses or runs,
`verify` agrees or names a command, until clients go on. TEST_RUNNING_DAMAGES says how many seeds.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from connectors.delta.tables import AUDIT_TABLES, table_path
from tests.crash.job_site import CONTRADICTION, OK, Site, send, typed, work
from tests.support.harms import HARMS
from tests.support.runbook import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAMAGES = int(os.environ.get("TEST_RUNNING_DAMAGES", "3"))
STEPS_MAX = 6
NOTICED_WITHIN_S = 6.0
COMMAND = re.compile(r"`(popstream (?:restore|verify)[^`]*)`")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1200)]


def kinds(site: Site) -> Iterator[tuple[str, list[Path]]]:
    """Yield each kind of file that a running job has, and those that there are."""
    folder = site.folder
    for store in (folder.state, folder.queues):
        for pattern in ("*.sst", "*.log", "MANIFEST-*", "CURRENT", "OPTIONS-*"):
            yield f"{store.name} {pattern}", sorted(store.glob(pattern))
    yield "snapshot", sorted((folder.snapshots / "files").iterdir())
    tables = [*AUDIT_TABLES, "consume_queue"]
    logs = [table_path(folder.delta, table) / "_delta_log" for table in tables]
    yield "commit", [file for log in logs for file in sorted(log.glob("*.json"))[-3:]]
    yield "checkpoint", [file for log in logs for file in log.glob("*.checkpoint*")]
    yield "_last_checkpoint", [file for log in logs for file in log.glob("_last_checkpoint")]
    yield "data file", sorted(folder.delta.glob("*/*/*.parquet"))
    yield "small file", [file for file in (folder.attempts, folder.lock, folder.job_file) if file.exists()]


def harmed(site: Site, chance: random.Random, number: int) -> str:
    """Run the job, damage a file while it works, and kill it; what was done, and what the job said if it ended."""
    with site.running() as job:
        servers = job.servers
        send(servers, 40)
        work(servers, 20)
        present = [(kind, files) for kind, files in kinds(site) if files]
        kind, files = present[number % len(present)]
        victim, harm = chance.choice(files), HARMS[number % len(HARMS)]
        harm(victim, chance)
        send(servers, 40)
        code = job.ended_within(NOTICED_WITHIN_S)
        assert code in (None, CONTRADICTION), f"{harm.__name__} of {victim}: {code}\n{site.said}"
    return f"{harm.__name__} of {kind} {victim}"


def heal(site: Site) -> list[str]:
    """Do what messages say until job and verification agree; the messages."""
    told: list[str] = []
    said = site.try_up()
    for _ in range(STEPS_MAX):
        if said is None:
            code, said = typed(f"popstream verify --folder {site.root}")
            if code == OK:
                return told
            assert code == CONTRADICTION, said
        assert "Traceback" not in said, said
        told.append(said)
        if "differ" not in said:
            assert row_of(said) is not None, f"the runbook has no row for: {said}"
        commands = COMMAND.findall(said)
        assert commands, said
        code, said = typed(commands[0])
        assert code in (OK, CONTRADICTION), said
        assert "Traceback" not in said, said
        if code == OK:
            said = site.try_up()
    raise AssertionError("\n".join(told))


@pytest.mark.parametrize("number", range(DAMAGES))
def test_the_printed_command_heals(played: Site, tmp_path: Path, number: int) -> None:
    shutil.copytree(played.root, tmp_path / "job", ignore=shutil.ignore_patterns("*.sock"))
    site = Site(tmp_path / "job")
    where = harmed(site, random.Random(number), number * 7 + 1)
    try:
        print(where, heal(site) or "without effect")
        site.goes_on()
    except BaseException as error:
        error.add_note(where)
        raise
