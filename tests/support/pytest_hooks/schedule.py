"""Decide which worker of pytest-xdist runs which test file: longest first, and Spark on three workers only.

A worker that meets a test with Spark or Kafka starts a JVM of each, about 2 GiB, and keeps them. The other workers take
files that need neither, and use the CPU while a test waits for its broker. The tests of a file stay on one worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

__all__ = ["LightAndHeavyScheduling", "in_order"]

HEAVY_WORKERS = 3
HEAVY = ("tests/integration/", "tests/crash/test_crash", "tests/crash/test_damage")
# A long file that begins last would keep one worker busy while the others have nothing to do.
LONGEST_FIRST = (
    "tests/crash/test_crash_matrix.py",
    "tests/integration/job/test_restore.py",
    "tests/integration/commands/test_up.py",
    "tests/integration/builder/test_build_consume_queue.py",
    "tests/integration/commands/test_demo.py",
    "tests/integration/job/test_ops_end_to_end.py",
    "tests/integration/delta/test_flusher.py",
    "tests/integration/job/test_older_folder.py",
    "tests/unit/expectations/test_expectations.py",
    "tests/crash/test_store_kills.py",
    "tests/conformance/test_conformance_mutants.py",
    "tests/unit/popstream/test_consumer_under_stress.py",
    "tests/unit/popstream/history/test_check.py",
    "tests/unit/pipelines/test_printed_commands.py",
    "tests/property/test_cuts.py",
    "tests/unit/popstream/pop/test_subscription.py",
    "tests/unit/pipelines/apply_ops/test_crash_loop.py",
    "tests/conformance/test_conformance.py",
)


def is_heavy(file: str) -> bool:
    """Return whether tests of a file start Spark or Kafka.

    >>> is_heavy("tests/integration/commands/test_up.py"), is_heavy("tests/crash/test_store_kills.py")
    (True, False)
    """
    return file.startswith(HEAVY)


def in_order(files: list[str]) -> list[str]:
    """Return the files in the order in which they should begin.

    >>> in_order(["tests/a.py", "tests/integration/commands/test_up.py", "tests/crash/test_crash_matrix.py"])
    ['tests/crash/test_crash_matrix.py', 'tests/integration/commands/test_up.py', 'tests/a.py']
    """
    ranks = {file: rank for rank, file in enumerate(LONGEST_FIRST)}
    return sorted(files, key=lambda file: (ranks.get(file, len(ranks)), not is_heavy(file)))


class LightAndHeavyScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives heavy files to the first workers, and light files to all."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = self._next_file(node)
        if file is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _next_file(self, node: WorkerController) -> str | None:
        """Return the file that this worker should take, None if all that are left are heavy and it is light."""
        files = in_order([*self.workqueue])
        workers = sorted(self.nodes, key=lambda each: int(each.gateway.id.removeprefix("gw")))
        if node in workers[:HEAVY_WORKERS]:
            return files[0]
        return next((file for file in files if not is_heavy(file)), None)
