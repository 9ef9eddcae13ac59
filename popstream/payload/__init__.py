"""Records of message topics: one fetcher for each process, which reads partitions in parallel."""
