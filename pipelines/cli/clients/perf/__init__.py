"""`popstream perf`: a load of its own for a running job, and what became of each message."""
