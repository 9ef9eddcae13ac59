"""build_consume_queue: the second streaming query of the job. It makes the messages of any producer poppable.

```
message topics ─> Kafka source ─> unit_columns (Spark tasks) ─┬─> Arrow ─> Builder ─ ONE WriteBatch ─> queues, units
                                                              │               └─ outbox ─> DispatchSender ─> ops topic
BuilderQuery ─ new, recreated, truncated topics ─> Builder    └─> UnitFlush ─> Delta consume_queue
```

It writes no lane state. A unit is durable before its dispatch is sent.
"""

PIPELINE = "build_consume_queue"
"""Name of the query, and of the pipeline in the transaction ids of its rows."""
