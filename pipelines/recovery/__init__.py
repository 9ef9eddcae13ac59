"""Snapshots, and what they are for: restore a job's folder, or decide the log again and compare."""
