"""The Spark that submits a job: that of `SPARK_HOME`, or the one inside the Python package."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from pathlib import Path

from connectors.jars.resolve import JarError, pyspark_jars
from popstream.wire.base_errors import Invalid

__all__ = ["chosen_spark_home", "packaged_spark_home"]

_CORE = re.compile(r"spark-core_2\.\d+-(.+)\.jar")


def packaged_spark_home() -> Path:
    """Return the Spark inside the Python package `pyspark`.

    Raises:
        Invalid: PySpark is not installed.
    """
    try:
        return pyspark_jars().parent
    except JarError as error:
        raise Invalid(str(error)) from error


def chosen_spark_home() -> Path:
    """Return the Spark of `SPARK_HOME`; without that variable the one inside the Python package.

    Raises:
        Invalid: PySpark is not installed, or `SPARK_HOME` has another version of Spark: Delta's jars are for one alone.
    """
    named = os.environ.get("SPARK_HOME")
    if not named:
        return packaged_spark_home()
    home, wanted = Path(named), version("pyspark")
    found = [match[1] for jar in (home / "jars").glob("spark-core_*.jar") if (match := _CORE.fullmatch(jar.name))]
    if found != [wanted]:
        what = f"has Spark {found[0]}" if found else "does not contain Spark"
        message = f"SPARK_HOME ({home}) {what}: this job needs {wanted}; unset it to submit with the one of pyspark"
        raise Invalid(message, subject=str(home))
    return home
