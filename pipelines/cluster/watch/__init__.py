"""What is known of a job on a cluster, and who answers for it."""
