"""popstream beside RocketMQ: vectors and recorded histories run against the kernel, differences explained by rules."""

from pipelines.conformance.histories import run_histories
from pipelines.conformance.vectors import run_vectors
from pipelines.conformance.verdict import Outcome, Verdict

__all__ = ["Outcome", "Verdict", "run_histories", "run_vectors"]
