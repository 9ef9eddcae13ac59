"""Servers that this machine runs for trials, tests and benchmarks: ports, and processes that end with their parent."""
