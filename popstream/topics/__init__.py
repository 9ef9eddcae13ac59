"""What Kafka and the job say about message topics: ids, log starts and ends, queue types."""
