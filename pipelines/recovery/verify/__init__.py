"""`popstream verify`: decides the log again, in processes of its own, and compares state and tables with the result.

```
base (an empty state, or a snapshot) ── records of the log ──> recomputed state  ==  the state, byte for byte
                                                          └──> recomputed rows   ==  the rows in Delta and the outbox
message topics, as far as they are retained  ==  units of the builder's store  ==  rows of consume_queue
```

plan.py says what is compared with what, and is kept: a verification that was stopped goes on. share.py decides the log
of some partitions again, units.py compares units, each in a process of its own (worker.py), which run.py starts and
listens to. Spark takes no part.
"""

from pipelines.recovery.progress import ProgressReport
from pipelines.recovery.verify.run import Inputs, goes_on, verify
from pipelines.recovery.verify.verdict import Advice, Verified
from pipelines.recovery.verify.work_folder import WorkFolder

__all__ = ["Advice", "Inputs", "ProgressReport", "Verified", "WorkFolder", "goes_on", "verify"]
