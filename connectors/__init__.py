"""The outside world as bytes and rows: Kafka, Delta Lake, the jars."""
