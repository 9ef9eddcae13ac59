"""A job that makes files at a URL: which of two writers makes one, by `NewFile` and by a plain create.

new_files_job SETTINGS URL
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from connectors.spark_cluster.new_file import NewFile
from pipelines.cli.options import load_settings
from pipelines.cluster.session import cluster_session


def main() -> None:
    """Run the job."""
    settings_file, url = sys.argv[1:]
    settings = load_settings(Path(settings_file))
    spark = cluster_session("new-files", 1, settings.session_conf)
    early, late = NewFile(spark, f"{url}/claim"), NewFile(spark, f"{url}/claim")
    # On S3 both have begun; elsewhere the second one has lost already.
    print("claims", late.write(b"late"), early.write(b"early"), NewFile(spark, f"{url}/claim").write(b"third"))
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{url}/plain")
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    plain = files.create(path, False), files.create(path, False)
    for stream, content in zip(plain, (b"first", b"second"), strict=True):
        stream.write(bytearray(content))
        stream.close()
    for name in ("claim", "plain"):
        stream = files.open(jvm.org.apache.hadoop.fs.Path(f"{url}/{name}"))
        print(name, bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode())
    spark.stop()


if __name__ == "__main__":
    main()
