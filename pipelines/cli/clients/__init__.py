"""Commands that are clients of a job."""
