"""Files of a job on S3, by a server of this machine."""
