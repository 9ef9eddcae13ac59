"""Kafka: administration of topics, the job's own topics, and an embedded broker for trials and tests."""
