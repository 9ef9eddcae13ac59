"""The command line. The code of a command is a module that is imported when it is called: `--help` starts no Spark."""
