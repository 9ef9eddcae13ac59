"""The numbers of a run, as text and as `summary.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from pipelines.demo.checks import Check, failure_lines, verdict_line
from pipelines.demo.demo_verdict import Evidence, Expected, GroupCounts, judge, lost
from popstream.history.check import ViolationKind

if TYPE_CHECKING:
    from expectations.report import QualityReport  # that package imports Great Expectations, which takes seconds

__all__ = ["DemoSummary", "Findings", "Measurements", "PeakMemory", "Phases", "RunCounts", "examine", "summarize"]


class Phases(msgspec.Struct):
    """Seconds: until the job runs; until every message is done; until all is in Delta; comparing; suites; stopping."""

    start: float = 0.0
    load: float = 0.0
    settle: float = 0.0
    verdict: float = 0.0
    quality: float = 0.0
    stop: float = 0.0


class PeakMemory(msgspec.Struct):
    """Resident MiB at its peak, until every message is done: of the job's processes, and of all workers together.

    Attributes:
        python: Of this process, in which the job runs, or the driver.
        jvm: Of Spark's JVM.
        kafka: Of the embedded Kafka.
        workers: Of all workers together.
        with_suites: Of this process, with what judges the run: the histories, and the quality suites.
    """

    python: int = 0
    jvm: int = 0
    kafka: int = 0
    workers: int = 0
    with_suites: int = 0


class Measurements(msgspec.Struct, kw_only=True):
    """Measured while the demo runs: `ops` are all records of the ops topic, `cpu_seconds` are of all processes."""

    ops: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    phase_seconds: Phases = msgspec.field(default_factory=Phases)
    memory_mib: PeakMemory = msgspec.field(default_factory=PeakMemory)


class DemoSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one run; `ops_per_s` is over the time until every message was done."""

    verdict: Literal["ok", "failed"]
    messages: int
    groups: int
    queues: int
    lost: int
    double_leased: int
    acked: int
    dead_lettered: int
    redelivered: int
    refused: int
    rejected: int
    ops: int
    ops_per_s: float
    seconds: float
    cpu_seconds: float
    expectations_failed: int
    checks_failed: list[Check]
    expectations_not_met: list[str]
    checks: int
    phase_seconds: Phases
    memory_mib: PeakMemory

    def as_text(self) -> str:
        """Return the text that is printed."""
        memory = self.memory_mib
        numbers = {
            "messages": f"{self.messages} in {self.queues} queues, for {self.groups} groups",
            "acked": self.acked,
            "dead letters": self.dead_lettered,
            "lost": self.lost,
            "leased twice at a time": self.double_leased,
            "redelivered": self.redelivered,
            "refused": self.refused,
            "rejected": self.rejected,
            "operations": f"{self.ops}, {self.ops_per_s:.0f}/s",
            "expectations failed": self.expectations_failed,
            "seconds": f"{self.seconds:.1f}, {self.cpu_seconds:.0f} of CPU",
            "memory": f"{memory.python} MiB of Python and {memory.jvm} of the JVM, before the suites",
        }
        width = max(map(len, numbers))
        lines = [f"  {name:<{width}}  {value}" for name, value in numbers.items()]
        lines += failure_lines(self.checks_failed)
        lines += (f"  FAILED: {name}" for name in self.expectations_not_met)
        return "\n".join([*lines, verdict_line(self.verdict, self.checks, self.checks_failed)])


class RunCounts(NamedTuple):
    """What happened in a run, as the summary names it."""

    messages: int
    groups: int
    queues: int
    lost: int
    double_leased: int
    acked: int
    dead_lettered: int
    redelivered: int
    refused: int
    rejected: int


class Findings(NamedTuple):
    """What the evidence of a run shows; the evidence itself has an entry for each message and group."""

    checks: list[Check]
    counts: RunCounts


def examine(expected: Expected, evidence: Evidence) -> Findings:
    """Judge a run, and count what happened."""
    counts = [evidence.counts.get(group, GroupCounts()) for group in expected.groups]
    double = [v for v in evidence.history.violations if v.kind is ViolationKind.TWO_LIVE_LEASES]
    happened = RunCounts(
        messages=len(expected.sent.contents),
        groups=len(expected.groups),
        queues=expected.queues,
        lost=sum(1 for _ in lost(expected, evidence)),
        double_leased=sum(violation.last - violation.first + 1 for violation in double),
        acked=sum(count.acked for count in counts),
        dead_lettered=sum(count.dead_lettered for count in counts),
        redelivered=sum(count.redelivered for count in counts),
        refused=len({row[:2] for row in evidence.refusals}),
        rejected=len(evidence.rejected),
    )
    return Findings(judge(expected, evidence), happened)


def summarize(findings: Findings, quality: QualityReport, measured: Measurements) -> DemoSummary:
    """Combine the findings with the outcome of the quality suites and the measurements."""
    failed = [check for check in findings.checks if check.failures]
    phases = msgspec.structs.asdict(measured.phase_seconds)
    return DemoSummary(
        verdict="failed" if failed or quality.failures else "ok",
        **findings.counts._asdict(),
        ops=measured.ops,
        ops_per_s=round(measured.ops / phases["load"], 1) if phases["load"] else 0.0,
        seconds=round(measured.seconds, 1),
        cpu_seconds=round(measured.cpu_seconds, 1),
        expectations_failed=len(quality.failures),
        checks_failed=failed,
        expectations_not_met=[f"{failure.suite}: {failure.expectation}" for failure in quality.failures],
        checks=len(findings.checks),
        phase_seconds=Phases(**{name: round(seconds, 1) for name, seconds in phases.items()}),
        memory_mib=measured.memory_mib,
    )
