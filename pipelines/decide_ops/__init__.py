"""What decides the operations of an ops topic, in any runner: order, decode, prefetch, decide, encode what leaves.

Pure: records go in, entries come out, state is behind a port. No Spark, no RocksDB, no Kafka, no clock.
"""
