"""The file that `spark-submit` starts: it runs a module, as `python -m MODULE ARGUMENTS` would.

    spark-submit ... launcher.py pipelines.cli.cluster.run_on_cluster --settings FILE --checkpoint URL

`spark-submit` takes files alone, and Python puts the folder of a file that it runs before all others.
"""

import runpy
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
