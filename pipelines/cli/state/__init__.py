"""Commands on the state of a job."""
