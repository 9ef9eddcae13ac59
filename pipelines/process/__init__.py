"""The process around the queries: start, threads, JVM, restarts, logs, maintenance, shutdown."""
