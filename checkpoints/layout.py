"""Where a job keeps what: one folder, made by `popstream up`, that nothing else writes to.

var/job/
  state/        RocksDB, the truth
  spark/        Spark's checkpoint: which records a micro-batch has; begun anew with every start
  queues/       RocksDB of the builder: the consume queues of the message topics
  spark_build/  Spark's checkpoint of the builder's query, begun anew with every query
  delta/        the audit tables
  snapshots/    snapshots, unless the settings name another place
  replaced/     what a restore has put aside
  scratch/      what is made and removed again
  last_done/    when what is due now and then was done, a file for each
  attempts      what the job has begun to decide and not ended
  lock          held by the job that owns all this
  job.json      who that is and where it listens
  kafka/        the embedded broker, when there is one
  job.log       and jvm.log: what the job and its JVM say
"""

from pathlib import Path

import msgspec

__all__ = ["JobFolder"]


class JobFolder(msgspec.Struct, frozen=True):
    """The paths below the folder of one job."""

    root: Path

    @property
    def state(self) -> Path:
        """RocksDB."""
        return self.root / "state"

    @property
    def spark(self) -> Path:
        """Spark's checkpoints, one folder for each time one was begun anew."""
        return self.root / "spark"

    @property
    def queues(self) -> Path:
        """RocksDB of the builder."""
        return self.root / "queues"

    @property
    def builder_spark(self) -> Path:
        """Spark's checkpoints of the builder."""
        return self.root / "spark_build"

    @property
    def delta(self) -> Path:
        """The audit tables."""
        return self.root / "delta"

    @property
    def snapshots(self) -> Path:
        """Snapshots of state and queues."""
        return self.root / "snapshots"

    @property
    def replaced(self) -> Path:
        """What was there before a restore, a folder for each."""
        return self.root / "replaced"

    @property
    def scratch(self) -> Path:
        """What is made and removed again, on the same disk."""
        return self.root / "scratch"

    @property
    def last_done(self) -> Path:
        """When what is due now and then was done: an empty file for each, by its time."""
        return self.root / "last_done"

    @property
    def attempts(self) -> Path:
        """The note of what was begun to be decided."""
        return self.root / "attempts"

    @property
    def lock(self) -> Path:
        """The file whose flock means ownership."""
        return self.root / "lock"

    @property
    def card(self) -> Path:
        """The running job's process id, address and topics."""
        return self.root / "job.json"
