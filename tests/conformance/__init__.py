"""popstream beside RocketMQ: vectors and recorded histories run against the kernel, differences explained by rules."""

from tests.conformance.conformance_verdict import Verdict, VerdictKind
from tests.conformance.histories.history_runner import run_histories
from tests.conformance.vectors.vector_runner import run_vectors

__all__ = ["Verdict", "VerdictKind", "run_histories", "run_vectors"]
