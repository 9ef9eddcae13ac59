"""The ops log of a test for `popstream what-if`, without Kafka and without other processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from checkpoints.reconcile import LogFound
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.tuning.share import run_share
from pipelines.tuning.worker import ReplayTask
from popstream.kafka_connection import KafkaConnection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pytest


__all__ = ["ReplayedLog"]


class ReplayedLog:
    """A log of one partition.

    Args:
        records: Its records.
        first_offset: Where it begins: what is before was deleted.
    """

    def __init__(self, records: Sequence[KafkaRecord], first_offset: int = 0) -> None:
        self._records = records
        self.log = LogFound(
            topic="popstream.ops",
            topic_id="ops-topic",
            first_offset={0: first_offset},
            end_offset={0: records[-1].kafka_offset + 1},
        )

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the command read this log."""
        monkeypatch.setattr("pipelines.cli.tuning.replay_log.open_kafka", self._kafka)
        monkeypatch.setattr("pipelines.cli.tuning.replay_log.require_keys", lambda *_: None)
        monkeypatch.setattr("pipelines.cli.tuning.replay_log.log_of", lambda *_: self.log)
        monkeypatch.setattr("pipelines.tuning.what_if.offsets_at", self._offsets_at)
        monkeypatch.setattr("pipelines.tuning.what_if.run_processes", self._run)

    @contextlib.contextmanager
    def _kafka(self, *_: object) -> Iterator[KafkaConnection]:
        yield KafkaConnection("")

    def _offsets_at(self, _connection: KafkaConnection, _log: LogFound, at_ms: int) -> dict[int, int]:
        later = (record.kafka_offset for record in self._records if record.timestamp_ms >= at_ms)
        return {0: next(later, self.log.end_offset[0])}

    def _run(
        self, _module: str, tasks: Mapping[int, ReplayTask], _progress: object, **_: str
    ) -> dict[int, msgspec.Raw]:
        return {number: msgspec.Raw(msgspec.json.encode(self._share(task))) for number, task in tasks.items()}

    def _share(self, task: ReplayTask) -> object:
        base = None if task.base is None else Path(task.base)
        return run_share(
            task.partitions, base, Path(task.folder), task.settings, Decoder(1), self._between, lambda *_: None
        )

    def _between(self, _partition: int, first: int, end: int) -> Iterator[KafkaRecord]:
        return (record for record in self._records if first <= record.kafka_offset < end)
