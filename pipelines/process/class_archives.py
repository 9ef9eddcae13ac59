"""`python -m pipelines.process.class_archives`: make the class archives that let the JVMs of a job start faster.

Both JVMs run once, do what they do at the start of a job, and write down the classes that they loaded
(`connectors.jars.class_archive`).
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kafka import KafkaProducer

from connectors.delta.session import QUICK_COMPILER, build_session
from connectors.jars.class_archive import Program, class_archive, flag_to_make
from connectors.jars.resolve import kafka_jars, spark_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from pipelines.process.jvm import ended_jvm, output_in

__all__ = ["main", "make_class_archives"]

_TOPIC = "class-archive"
_WRITING_S = 60.0
"""Seconds that a JVM may take to write its archive."""


def make_class_archives(var: Path) -> list[Path]:
    """Make the archives that are missing, remove those of other jars or Javas, and return what was made.

    Args:
        var: Folder with the jars.

    Raises:
        JarError: Java or a jar is missing.
        PopstreamError: The embedded Kafka does not start.
        Exception: Spark failed.
    """
    wanted: dict[Program, Path] = {
        "spark": class_archive("spark", spark_jars(var)),
        "kafka": class_archive("kafka", kafka_jars(var)),
    }
    folder = wanted["spark"].parent
    folder.mkdir(parents=True, exist_ok=True)
    if all(archive.is_file() for archive in wanted.values()):
        return []
    for old in folder.iterdir():
        old.unlink()
    # A JVM that is interrupted while it writes leaves a part of a file: only a whole one gets its name.
    parts = {program: archive.with_suffix(".part") for program, archive in wanted.items()}
    with tempfile.TemporaryDirectory(prefix="popstream-") as scratch:
        _run_both(var, parts, Path(scratch))
    made = []
    for program, archive in wanted.items():
        if parts[program].is_file():
            parts[program].rename(archive)
            made.append(archive)
    return made


def _run_both(var: Path, archives: dict[Program, Path], scratch: Path) -> None:
    options = [flag_to_make(archives["kafka"])]
    kafka = EmbeddedKafka(scratch / "kafka", jars=kafka_jars(var), java_options=options, stop_grace_s=_WRITING_S)
    with output_in(Path(os.devnull)), kafka:
        create_message_topic(kafka.connection, _TOPIC, partitions=1)
        producer = KafkaProducer(**kafka.connection.for_kafka_python())
        producer.send(_TOPIC, b"value", key=b"key").get(timeout=30)
        producer.close()
        ending = contextlib.ExitStack()
        with ending, ended_jvm(_WRITING_S):
            _run_spark(var, archives["spark"], kafka.bootstrap_servers, scratch)
            ending.enter_context(_kept_if_whole(archives["spark"]))
        with _kept_if_whole(archives["kafka"]):
            kafka.stop()


@contextlib.contextmanager
def _kept_if_whole(archive: Path) -> Iterator[None]:
    """Remove the archive if the JVM, which ends inside, took so long that it was killed while it wrote."""
    started = time.monotonic()
    yield
    if time.monotonic() - started >= _WRITING_S:
        archive.unlink(missing_ok=True)


def _run_spark(var: Path, archive: Path, bootstrap_servers: str, scratch: Path) -> None:
    """Stream a record from Kafka to Delta, and read it."""
    conf = {"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.local.dir": str(scratch)}
    options = [QUICK_COMPILER, flag_to_make(archive)]
    spark = build_session("popstream-class-archive", spark_jars(var), java_options=options, conf=conf)
    table = str(scratch / "table")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", _TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        records.writeStream.option("checkpointLocation", str(scratch / "spark"))
        .trigger(availableNow=True)
        .foreachBatch(lambda frame, _: frame.write.format("delta").mode("append").save(table))
        .start()
    )
    query.awaitTermination()
    spark.read.format("delta").load(table).groupBy("partition").count().toArrow()
    spark.stop()


def main(arguments: list[str] | None = None) -> int:
    """Run the command. It fails softly: without archives everything works, and starts take longer."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.process.class_archives", description="Make the class archives of Spark and Kafka."
    )
    parser.add_argument("--var", type=Path, default=Path("var"), help="directory of run-time data (default: var)")
    options = parser.parse_args(arguments)
    try:
        for archive in make_class_archives(options.var.resolve()):
            print(f"      {archive.name}: {archive.stat().st_size / 1024**2:,.0f} MiB", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - whatever failed, a set-up without archives is complete
        print(f"popstream: no class archives, so that each start takes 4 s longer: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
