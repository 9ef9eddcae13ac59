"""What became of one vector or history."""

import enum
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Comparison", "NotApplicableError", "Verdict", "VerdictKind", "plain"]


_NOT_RECORDED = object()


class NotApplicableError(Exception):
    """A vector or history asks for something that popstream has no counterpart of; says for what."""


class VerdictKind(enum.StrEnum):
    """The four words that a line may have after the id."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    DIFFERS = "differs"
    NOT_APPLICABLE = "not-applicable"


class Verdict(NamedTuple):
    """One line of the report."""

    id: str
    outcome: VerdictKind
    detail: str = ""

    def __str__(self) -> str:
        """Id, outcome, and what there is to say.

        >>> print(Verdict("OI-1", VerdictKind.PASS), Verdict("OI-2", VerdictKind.DIFFERS, "fenced handles"), sep=", ")
        OI-1 pass, OI-2 differs: fenced handles
        """
        if self.outcome is VerdictKind.PASS:
            return f"{self.id} {self.outcome}"
        return f"{self.id} {self.outcome}{' ' if self.outcome is VerdictKind.FAIL else ': '}{self.detail}"


class Comparison:
    """Collects, step by step, whether ours is RocketMQ's value, or what the rules make of that value."""

    def __init__(self) -> None:
        self.failure: str | None = None
        self.rules: list[str] = []

    def check(self, where: str, expected: object, mapped: object, ours: object, rules: list[str]) -> None:
        """`mapped` is what `rules` make of `expected`; ours must be that, and nothing else."""
        if self.failure is not None:
            return
        if plain(mapped) != plain(ours):
            by = f", which {' and '.join(rules)} makes {mapped!r}" if rules else ""
            self.failure = f"at {where}: RocketMQ has {expected!r}{by}, popstream {ours!r}"
        for rule in rules:
            if rule not in self.rules:
                self.rules.append(rule)

    def compare(
        self, where: str, *, rocketmq: object, ours: object, rules: Iterable[str], recorded: object = _NOT_RECORDED
    ) -> None:
        """RocketMQ's recorded value must be that of its shadow; where ours is another, `rules` must say why.

        Args:
            where: The step.
            rocketmq: By the shadow of RocketMQ.
            ours: From the kernel's answers.
            rules: Names of those that let the two differ here; none: they must be equal.
            recorded: What RocketMQ had; may be left out.
        """
        if recorded is not _NOT_RECORDED and plain(recorded) != plain(rocketmq):
            self.fail(f"at {where}: RocketMQ has {recorded!r}, by its rules it has {rocketmq!r}")
        if plain(ours) == plain(rocketmq):
            return
        used = list(dict.fromkeys(rules))
        if not used:
            self.fail(f"at {where}: RocketMQ has {rocketmq!r}, popstream {ours!r}")
        self.rules += [rule for rule in used if rule not in self.rules]

    def agree(self, where: str, disagreement: str | None) -> None:
        """The kernel must agree with popstream's own rules."""
        if disagreement is not None:
            self.fail(f"at {where}: the kernel differs from popstream's rules: {disagreement}")

    def fail(self, why: str) -> None:
        """The first failure counts."""
        self.failure = self.failure or why

    def verdict(self, subject: str) -> Verdict:
        """What the checks amount to."""
        if self.failure is not None:
            return Verdict(subject, VerdictKind.FAIL, self.failure)
        if self.rules:
            return Verdict(subject, VerdictKind.DIFFERS, "; ".join(self.rules))
        return Verdict(subject, VerdictKind.PASS)


def plain(value: object) -> object:
    """A value as JSON would bring it back, an empty map as null: RocketMQ's serialiser leaves both out."""
    if isinstance(value, dict):
        return {str(key): kept for key, item in value.items() if (kept := plain(item)) is not None} or None
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
