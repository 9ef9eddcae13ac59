"""The folder of a job: created by `popstream up`; only the job and popstream's commands write to it.

```
var/job/
  state/        RocksDB: the state, which the rest is reconciled against
  spark/        Spark's checkpoint, which says what a micro-batch contains; new at every start
  queues/       RocksDB of the builder: the consume queues of the message topics
  spark_build/  Spark's checkpoint of the builder's query; new with every query
  delta/        the audit tables, unless the settings name another place
  snapshots/    snapshots, unless the settings name another place
  replaced/     states and tables that a restore replaced
  scratch/      temporary files
  verify/       what `popstream verify` has done, so that it goes on after a stop
  last_done/    one empty file per periodic task: its time says when the task was last done
  scrubbed      table files that the present pass of the scrub has read; none between two passes
  attempts      attempts to decide the next micro-batch, for the crash-loop breaker
  lock          locked by the job that owns the folder
  job.json      process id, addresses and token of the running job
  control.sock  control socket of the running job
  kafka/        data of the embedded broker, if any
  job.log       log of the job; jvm.log: output of its JVM; job.log.1, jvm.log.1: what was in them before
```
"""

from pathlib import Path

import msgspec

__all__ = ["JobFolder"]


class JobFolder(msgspec.Struct, frozen=True):
    """The paths below the folder of one job.

    Attributes:
        root: The folder.
        tables: Where the audit tables are; None: in the folder.
    """

    root: Path
    tables: Path | None = None

    def absolute(self) -> "JobFolder":
        """Return the same with absolute paths."""
        return JobFolder(self.root.absolute(), None if self.tables is None else self.tables.absolute())

    @property
    def state(self) -> Path:
        """RocksDB of the job."""
        return self.root / "state"

    @property
    def spark(self) -> Path:
        """Spark's checkpoints of the job's query."""
        return self.root / "spark"

    @property
    def queues(self) -> Path:
        """RocksDB of the builder."""
        return self.root / "queues"

    @property
    def builder_spark(self) -> Path:
        """Spark's checkpoints of the builder's query."""
        return self.root / "spark_build"

    @property
    def delta(self) -> Path:
        """The audit tables."""
        return self.root / "delta" if self.tables is None else self.tables

    @property
    def snapshots(self) -> Path:
        """Snapshots of state and queues."""
        return self.root / "snapshots"

    @property
    def replaced(self) -> Path:
        """States and tables that a restore replaced, in a folder for each time."""
        return self.root / "replaced"

    @property
    def replaced_tables(self) -> Path:
        """Tables that a restore replaced, likewise: on their own disk."""
        return self.replaced if self.tables is None else self.tables / "replaced"

    @property
    def scratch(self) -> Path:
        """Temporary files on the same disk."""
        return self.root / "scratch"

    @property
    def verify(self) -> Path:
        """What `popstream verify` has done."""
        return self.root / "verify"

    @property
    def last_done(self) -> Path:
        """One empty file per periodic task, whose modification time says when the task was last done."""
        return self.root / "last_done"

    @property
    def scrubbed(self) -> Path:
        """Names of the table files that the present pass of the scrub has read."""
        return self.root / "scrubbed"

    @property
    def attempts(self) -> Path:
        """Attempts to decide the next micro-batch."""
        return self.root / "attempts"

    @property
    def kafka(self) -> Path:
        """Data of the embedded broker, if the job has one."""
        return self.root / "kafka"

    @property
    def lock(self) -> Path:
        """The file whose flock is the ownership of the folder."""
        return self.root / "lock"

    @property
    def job_file(self) -> Path:
        """How to reach the running job (pipelines/control/job_file.py)."""
        return self.root / "job.json"
