"""What encryption costs: the drain of the same operations from a plain broker, and from one with TLS and a login."""

import statistics
from typing import Any

from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.secured_kafka import running
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.drain import drain, fill_with_single_entries

__all__ = ["measure_tls"]

PREFIX = "tls"
SHARE = 4
"""The topics have this part of the operations that `drain` has: each is drained twice."""
TURNS = ("plaintext", "sasl_ssl", "sasl_ssl", "plaintext")
"""So that neither has the colder caches, nor the end of a run in which the machine grows busier."""


def measure_tls(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Return the rates by turns, the CPU a record, and what of the rate is left with encryption.

    Both brokers run all the time, with the same flags of their JVMs; the job and the writer of the topic connect as the
    user `admin`, by SCRAM-SHA-512. `cpu_us_per_record` has the CPU of both brokers, one of which is idle.
    """
    with running(options.work / "secured", kafka_jars(options.var), java_options=()) as secured:
        brokers = {"plaintext": kafka, "sasl_ssl": secured.broker}
        records = {
            name: fill_with_single_entries(options, broker, PREFIX, options.operations // SHARE)
            for name, broker in brokers.items()
        }
        drained: dict[str, list[dict[str, Any]]] = {name: [] for name in brokers}
        for turn, name in enumerate(TURNS):
            folder = options.work / f"tls-{turn}"
            found = drain(brokers[name], PREFIX, folder, options.var, records[name], flush_interval_s=5.0)
            drained[name].append(found)
            options.on_progress(
                f"{name}: {found['ops_per_s_until_answered']:,} operations a second,"
                f" {found['cpu_us_per_record']['total']:.1f} µs of CPU each"
            )
    report: dict[str, Any] = {name: _summary(turns) for name, turns in drained.items()}
    plain, encrypted = report["plaintext"], report["sasl_ssl"]
    report["rate_ratio"] = round(encrypted["ops_per_s"] / plain["ops_per_s"], 3)
    report["cpu_ratio"] = round(encrypted["cpu_us_per_record"]["total"] / plain["cpu_us_per_record"]["total"], 3)
    options.on_progress(
        f"with TLS {report['rate_ratio']:.0%} of the rate, {report['cpu_ratio']:.0%} of the CPU an operation"
    )
    return report


def _summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the records, the rate of each turn and their mean, and the mean CPU a record by thread and process."""
    rates = [turn["ops_per_s_until_answered"] for turn in turns]
    parts = turns[0]["cpu_us_per_record"]
    return {
        "records": turns[0]["records"],
        "ops_per_s": round(statistics.mean(rates)),
        "ops_per_s_by_turn": rates,
        "cpu_us_per_record": {
            part: round(statistics.mean(turn["cpu_us_per_record"].get(part, 0.0) for turn in turns), 2)
            for part in parts
        },
    }
