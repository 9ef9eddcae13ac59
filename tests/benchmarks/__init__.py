"""`make bench`: how fast the kernel, the store and the whole job are on this machine, as one JSON document."""

from tests.benchmarks.report import run_bench

__all__ = ["run_bench"]
