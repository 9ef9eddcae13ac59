"""Records of message topics: one fetcher a process, which reads partitions side by side."""
