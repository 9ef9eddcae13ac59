"""The most memory that the job's processes had resident while the demo ran."""

import contextlib
import os
import threading
from typing import Self

import msgspec
import psutil

__all__ = ["MemoryWatch", "Peaks"]

SAMPLE_EVERY_S = 0.5
MIB = 1024 * 1024


class Peaks(msgspec.Struct):
    """Resident memory in MiB: of this process, of Spark's JVM, of our Kafka, and of all worker processes together."""

    python: int = 0
    jvm: int = 0
    kafka: int = 0
    workers: int = 0


class MemoryWatch:
    """Samples in a thread of its own, from entry to exit."""

    def __init__(self) -> None:
        self.peaks = Peaks()
        self.kafka_pid: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        own = psutil.Process(os.getpid())
        while not self._stop.wait(SAMPLE_EVERY_S):
            with contextlib.suppress(psutil.Error):
                self._sample(own)

    def _sample(self, own: psutil.Process) -> None:
        found = Peaks(python=own.memory_info().rss // MIB)
        for child in own.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                mib = child.memory_info().rss // MIB
                if child.pid == self.kafka_pid:
                    found.kafka += mib
                elif child.name() == "java":
                    found.jvm += mib
                elif any("pipelines.demo.worker" in part for part in child.cmdline()):
                    found.workers += mib
        for name in msgspec.structs.fields(Peaks):
            setattr(self.peaks, name.name, max(getattr(self.peaks, name.name), getattr(found, name.name)))
