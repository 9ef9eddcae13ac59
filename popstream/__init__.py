"""POP consumption and batch consume queues on Kafka, Spark, RocksDB and Delta Lake."""
