"""Commands on the Delta tables of a job."""
