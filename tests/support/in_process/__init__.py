"""The kernel, a small job and a producer in this process, without Spark and Kafka."""
