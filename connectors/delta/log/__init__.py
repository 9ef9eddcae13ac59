"""The log of a Delta table, read without Spark: actions, commits, checkpoints and transactions."""
