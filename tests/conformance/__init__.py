"""popstream beside RocketMQ: vectors and recorded histories run against the kernel, differences explained by rules."""

from tests.conformance.histories import run_histories
from tests.conformance.vectors import run_vectors
from tests.conformance.verdict import Verdict, VerdictKind

__all__ = ["Verdict", "VerdictKind", "run_histories", "run_vectors"]
