"""A job on a Spark cluster: what it brings with it, how it is submitted, and a small cluster for trials and tests.

| module | content |
|---|---|
| `spark_home` | the Spark whose `spark-submit` is called, and its version |
| `packed_environment` | the archive with the packages that driver and executors import |
| `submission` | the `spark-submit` command of a job |
| `redaction` | what Spark does not show of the settings |
| `storage` | Spark's settings for files on disks and on S3 |
| `launcher` | the file that `spark-submit` starts |
| `new_file` | a file that one writer alone makes, wherever Hadoop reaches |
| `standalone` | a master and workers as processes of this machine |
"""
