"""Data quality of the Delta tables: the suites as code, and their validation."""
