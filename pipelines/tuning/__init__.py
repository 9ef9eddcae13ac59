"""Settings of groups: what others would have changed (`popstream what-if`), which to choose (`popstream recommend`).

```
base (an empty state, or a snapshot) ── log before the range ──> the state at its begin, twice
records of the range ── kernel ──> facts ── recorder.py ──> what clients sent by themselves, how they handled leases
                                                      └──> replay.py ── kernel, other settings ──> what would have been
tables ── DuckDB ──> lease_figures.py ──> recommendation.py
```

A queue is replayed by itself, in a process for each share of the partitions (worker.py), as a verification does.
"""
