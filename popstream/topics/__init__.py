"""Facts about message topics: ids, log starts and ends from Kafka, queue types from the job."""
