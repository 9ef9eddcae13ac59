"""Kafka: its topics, their settings, keys and records, and a broker of our own for trials and tests."""
