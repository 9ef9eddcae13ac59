"""What is left of a run: the numbers, as text and as `summary.json`."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from pipelines.demo.memory import Peaks
from pipelines.demo.verdict import Check, Expected, Verdict

__all__ = ["Phases", "Quality", "Summary", "summarize"]


class Phases(msgspec.Struct):
    """Seconds: until the job runs; until every message is done; until all is in Delta; comparing; suites; stopping."""

    start: float = 0.0
    load: float = 0.0
    settle: float = 0.0
    verdict: float = 0.0
    quality: float = 0.0
    stop: float = 0.0


class Failure(Protocol):
    """An expectation that did not hold."""

    @property
    def suite(self) -> str:
        """Its suite."""

    @property
    def expectation(self) -> str:
        """Its name."""


class Quality(Protocol):
    """What the quality suites found."""

    @property
    def expectations_failed(self) -> int:
        """How many did not hold."""

    @property
    def failures(self) -> Sequence[Failure]:
        """Those that did not."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one run.

    `ops` are all records of the ops topic, `ops_per_s` those while the consumers ran; memory is resident, in MiB, at
    its peak; `cpu_seconds` are of all processes together.
    """

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
    memory_mib: Peaks

    def as_text(self) -> str:
        """For people."""
        numbers = (
            ("messages", f"{self.messages} in {self.queues} queues, for {self.groups} groups"),
            ("acked", self.acked),
            ("dead letters", self.dead_lettered),
            ("lost", self.lost),
            ("leased twice at a time", self.double_leased),
            ("redelivered", self.redelivered),
            ("refused", self.refused),
            ("rejected", self.rejected),
            ("operations", f"{self.ops}, {self.ops_per_s:.0f}/s"),
            ("expectations failed", self.expectations_failed),
            ("seconds", f"{self.seconds:.1f}, {self.cpu_seconds:.0f} of CPU"),
        )
        width = max(len(name) for name, _ in numbers)
        lines = [f"  {name:<{width}}  {value}" for name, value in numbers]
        for check in self.checks_failed:
            lines.append(f"  FAILED: {check.name} ({check.failures} times)")
            lines += (f"    {sample}" for sample in check.samples)
        lines += (f"  FAILED: {name}" for name in self.expectations_not_met)
        held = self.checks - len(self.checks_failed)
        return "\n".join([*lines, f"verdict: {self.verdict} ({held} of {self.checks} checks hold)"])


def summarize(
    verdict: Verdict,
    expected: Expected,
    quality: Quality,
    *,
    ops: int,
    seconds: float,
    cpu_seconds: float,
    phases: Phases,
    memory: Peaks,
) -> Summary:
    """Put it together."""
    is_ok = verdict.ok and not quality.expectations_failed
    rounded = Phases(**{name: round(value, 1) for name, value in msgspec.structs.asdict(phases).items()})
    return Summary(
        verdict="ok" if is_ok else "failed",
        messages=len(expected.contents),
        groups=len(expected.groups),
        queues=expected.queues,
        lost=verdict.lost,
        double_leased=verdict.double_leased,
        acked=verdict.acked,
        dead_lettered=verdict.dead_lettered,
        redelivered=verdict.redelivered,
        refused=verdict.refused,
        rejected=verdict.rejected,
        ops=ops,
        ops_per_s=round(ops / phases.load, 1) if phases.load else 0.0,
        seconds=round(seconds, 1),
        cpu_seconds=round(cpu_seconds, 1),
        expectations_failed=quality.expectations_failed,
        checks_failed=[check for check in verdict.checks if not check.ok],
        expectations_not_met=[f"{failure.suite}: {failure.expectation}" for failure in quality.failures],
        checks=len(verdict.checks),
        phase_seconds=rounded,
        memory_mib=memory,
    )
