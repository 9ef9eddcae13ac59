"""Snapshots, and their two uses: restoring a job's folder, and verifying that the log leads to the state."""
