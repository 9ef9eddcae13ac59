"""Differential vectors: steps with the answers of RocketMQ, and how each step is run on both sides."""
