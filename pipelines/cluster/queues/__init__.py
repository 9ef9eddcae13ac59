"""build_consume_queue on a cluster: what is read of message topics, and a shard for each queue."""
