"""The command line: one module for each command, imported when it is called, so that `--help` starts no Spark."""
