"""The job on Spark clusters: what needs another Spark than the tests of the embedded job."""
