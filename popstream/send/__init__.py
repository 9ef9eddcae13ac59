"""Sends: which messages share a batch, in what order batches go to Kafka, and the outcome of each message."""
