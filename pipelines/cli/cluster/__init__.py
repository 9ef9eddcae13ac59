"""The commands about jobs on Spark clusters."""
