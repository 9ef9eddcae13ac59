"""Kernel, store and outbox in a process that is really killed; tables and topics are a journal beside it.

`python -m tests.crash.mortal FOLDER KILLS SEED` is the parent: it imports once, then forks a child for each life. A
life goes on with the folder where the one before was killed, until the log is decided; then what is left is compared,
and the next log begins. Deaths are no fault of a record here: the breaker counts within one life only.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from broker_state.store.rocks_store import RocksStore
from tests.simulation.disk import Commit, Disk, Record
from tests.simulation.world import World, log_of, undisturbed

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDS = 250
PLACES = (
    *("decode", "order", "prefetch", "decide", "write", "store_write", "store_written", "publish", "commit"),
    *("flush_begin", "table_commit", "table_committed", "table_synced", "flush"),
)
FIRST_HITS_MAX = 12
LIFE_S_MAX = 0.25
DECIDED, DIFFERS = 0, 9


class HookedStore(RocksStore):
    """The real one, with places before and after each write."""

    hook: Callable[[str], None] = staticmethod(lambda _: None)

    def write(self, *args: Any, **kwargs: Any) -> int:
        """See `RocksStore.write`."""
        self.hook("store_write")
        written = super().write(*args, **kwargs)
        self.hook("store_written")
        return written


class JournalDisk(Disk):
    """Commits and records in one file, each appended by one system call: a kill leaves it, or does not.

    What was cut off at the end of the file was never there.
    """

    def __init__(self, store: Any, folder: Path) -> None:
        super().__init__(store)
        journal = folder / "journal"
        end = 0
        if journal.exists():
            data = journal.read_bytes()
            while end + 4 <= len(data) and end + 4 + (size := int.from_bytes(data[end : end + 4], "big")) <= len(data):
                what, name, fields = msgspec.msgpack.decode(data[end + 4 : end + 4 + size])
                if what == "commit":
                    slices = tuple((seq, rows) for seq, rows in fields[2])
                    super().commit(name, Commit(fields[0], fields[1], slices))
                else:
                    super().publish(name, tuple(fields))
                end += 4 + size
        self._file = os.open(journal, os.O_WRONLY | os.O_CREAT)
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)

    def commit(self, table: str, commit: Commit) -> None:
        """See `Disk.commit`."""
        self._append("commit", table, commit)
        super().commit(table, commit)

    def publish(self, topic: str, record: Record) -> None:
        """See `Disk.publish`."""
        self._append("record", topic, record)
        super().publish(topic, record)

    def _append(self, *entry: Any) -> None:
        data = msgspec.msgpack.encode(entry)
        os.write(self._file, len(data).to_bytes(4, "big") + data)


class MortalWorld(World):
    """Dies at the chosen place and time."""

    place: str | None = None
    hits_left = 0

    def pass_place(self, name: str) -> None:
        """See `World.pass_place`."""
        if name == self.place:
            self.hits_left -= 1
            if not self.hits_left:
                os.kill(os.getpid(), signal.SIGKILL)


def live(folder: Path, seed: int, chance_seed: int, place: str | None, hits: int) -> int:
    """One life."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    store = HookedStore(folder / "state")
    world = MortalWorld(log_of(seed, RECORDS), store, random.Random(chance_seed), 0.0, JournalDisk(store, folder))
    world.visible = {partition: len(world.log[partition]) for partition in world.visible}
    world.place, world.hits_left = place, hits
    differences = world.run().differences(undisturbed(seed, RECORDS))
    if differences:
        print(f"seed {seed}: {differences}", file=sys.stderr, flush=True)
    return DIFFERS if differences else DECIDED


def main(folder: Path, kills_wanted: int, first_seed: int) -> dict[str, Any]:
    """Kill so often; what came of it."""
    chance = random.Random(first_seed)
    seed, logs, kills = first_seed, 0, 0
    places: Counter[str] = Counter()
    failed: list[int] = []
    started = time.monotonic()
    while kills < kills_wanted or (folder / "state").exists():
        folder.mkdir(parents=True, exist_ok=True)
        is_named = kills < kills_wanted and chance.random() < 0.5
        place = chance.choice(PLACES) if is_named else None
        child = os.fork()
        if not child:
            code = 1
            try:
                code = live(folder, seed, chance.getrandbits(32), place, chance.randint(1, FIRST_HITS_MAX))
            except BaseException:  # noqa: BLE001 - a child ends here, whatever it is
                traceback.print_exc()
            finally:
                os._exit(code)
        if not is_named and kills < kills_wanted:
            time.sleep(chance.uniform(0, LIFE_S_MAX))
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        chance.random()
        if code == -signal.SIGKILL:
            kills += 1
            places[place or "at a random time"] += 1
            continue
        if code != DECIDED:
            failed.append(seed)
        logs += 1
        seed += 1
        shutil.rmtree(folder)
    seconds = round(time.monotonic() - started, 1)
    return {"kills": kills, "logs": logs, "failed": failed, "places": dict(places), "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
