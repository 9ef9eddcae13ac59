"""What decides the log: a shard for each partition of the ops topic, its state, and what leaves it."""
