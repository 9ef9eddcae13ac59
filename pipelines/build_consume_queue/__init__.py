"""build_consume_queue: the second streaming query, which makes poppable what any producer writes to a message topic.

```
message topics ─> Kafka source ─> unit_columns (Spark tasks) ─┬─> Arrow ─> Builder ─ ONE WriteBatch ─> queues, units
                                                              │               └─ outbox ─> DispatchSender ─> ops topic
TopicWatch ─ new, recreated, shortened topics ─> Builder      └─> UnitFlush ─> Delta consume_queue
```

It writes no lane state; a unit is durable before its dispatch is sent.
"""
