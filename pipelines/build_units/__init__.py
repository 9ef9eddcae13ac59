"""What makes units of what was read of a message log, in any runner: queues begin, grow and lose their start.

Pure: scans go in, changes of a queue and its operations come out, and units as rows; state is behind ports. No Spark,
no RocksDB, no Kafka, no clock.
"""
