"""The query that decides operations: six steps a micro-batch, from Kafka records to answers and audit rows."""
