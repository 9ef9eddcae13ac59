"""What several tests need: logs to fold, a Spark session, clients of few lines, readers of what a job leaves behind."""
