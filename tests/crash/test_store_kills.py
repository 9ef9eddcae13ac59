"""Claim: SIGKILL at any moment, and any damage to the write-ahead log, leaves a state that was there, whole.

Method: `mortal` kills processes that decide with the real kernel, store and outbox, until every log is decided, and
compares with an undisturbed run. The write-ahead log of a store is cut off and its bits flipped, each time on a copy.
`TEST_KILLS` and `TEST_WAL_DAMAGES` say how often; the defaults are the bounded part.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker_state.store.overlay import DEADLINES, OPS, STATE
from broker_state.store.rocks_store import META, OUTBOX, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied, applied_of
from popstream.wire.base_errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("TEST_KILLS", "8"))
DAMAGES = int(os.environ.get("TEST_WAL_DAMAGES", "60"))
BATCHES = 60
ALL = (STATE, OPS, DEADLINES, OUTBOX, META)


@pytest.mark.timeout(1800)
def test_killed_at_random_times_and_named_places(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests.crash.mortal", str(tmp_path / "job"), str(KILLS), "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    report = json.loads(said.stdout.splitlines()[-1])
    print(report)
    assert report["kills"] >= KILLS
    assert report["logs"] >= KILLS // 20
    assert not report["failed"], said.stderr


def digest_of(store: RocksStore) -> str:
    """Of every key and value."""
    everything = hashlib.sha256()
    for family in ALL:
        for key, value in store.scan(family, b""):
            everything.update(b"%d %d" % (len(key), len(value)) + key + value)
    return everything.hexdigest()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A store that was killed with all its batches in the log, and what it held after each."""
    root = tmp_path_factory.mktemp("wal")
    chance = random.Random(1)
    digests = []
    with RocksStore(root / "live") as store:
        for number in range(BATCHES):
            applied = Applied(state_epoch="e", ops_topic="t", ops_topic_id="i", apply_seq=number)
            changes: list[tuple[str, bytes, bytes | None]] = [(META, APPLIED_KEY, applied.encode())]
            for _ in range(chance.randrange(1, 30)):
                key = b"%04d" % chance.randrange(200)
                value = None if chance.random() < 0.2 else chance.randbytes(chance.randrange(1, 300))
                changes.append((chance.choice(ALL[:4]), key, value))
            store.write_changes(changes)
            digests.append(digest_of(store))
        shutil.copytree(root / "live", root / "image", ignore=shutil.ignore_patterns("LOCK"))
    return root / "image", digests


def damages(wal: bytes) -> Iterator[tuple[str, bytes]]:
    """Cut off at places all over, and with bits flipped all over."""
    chance = random.Random(2)
    for number in range(DAMAGES):
        if number % 2:
            at = len(wal) * number // DAMAGES + chance.randrange(max(1, len(wal) // DAMAGES))
            yield f"cut off at {at}", wal[:at]
        else:
            flipped = bytearray(wal)
            for _ in range(chance.choice([1, 1, 8])):
                at = chance.randrange(len(wal))
                flipped[at] ^= 1 << chance.randrange(8)
            yield f"flipped at {at}", bytes(flipped)


@pytest.mark.timeout(1800)
def test_wal_damage_gives_a_state_that_was_there_or_none(image: tuple[Path, list[str]], tmp_path: Path) -> None:
    """It may be an older one: each start compares it with Delta (`checkpoints.reconcile`)."""
    folder, digests = image
    (wal,) = folder.glob("*.log")
    outcomes: Counter[str] = Counter()
    for how, data in damages(wal.read_bytes()):
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        (copy / wal.name).write_bytes(data)
        try:
            with RocksStore(copy) as store:
                if store.get(META, APPLIED_KEY) is None:
                    assert digest_of(store) == hashlib.sha256().hexdigest(), how
                    outcomes["empty"] += 1
                else:
                    seq = applied_of(store).apply_seq
                    assert digest_of(store) == digests[seq], f"{how}: torn at {seq}"
                    outcomes["whole" if seq == BATCHES - 1 else "older"] += 1
        except (Invalid, Corrupt):
            outcomes["refused"] += 1
        shutil.rmtree(copy)
    print(dict(outcomes))
    assert sum(outcomes.values()) == DAMAGES
    assert outcomes["older"] > DAMAGES // 4
