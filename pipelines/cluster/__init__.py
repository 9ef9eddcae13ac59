"""The job on a Spark cluster: the same decisions as `apply_ops`, with the state in Spark's state store.

```
<prefix>.ops ──> pack ──> transformWithState, a key for each partition ──> Kafka sink
                          (Shard: decide_ops over ShardState)              ├─> results, notifications
                                                                           ├─> <prefix>.cluster_audit ──> Delta
                                                                           └─> <prefix>.cluster_deadlines ──> ticks
```

The checkpoint of the query is the state: versions, fencing, recovery and rescaling are Spark's.
"""
