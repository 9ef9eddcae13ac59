"""The queries of a job on a cluster, and where each has its checkpoint: below the job's state, by its name.

A name cannot change: a query that finds nothing under its name begins anew.
"""

__all__ = ["AUDIT", "BUILD_UNITS", "DECIDE_OPS", "audit_checkpoint", "decide_checkpoint", "units_checkpoint"]

DECIDE_OPS = "decide_ops"
AUDIT = "audit"
BUILD_UNITS = "build_units"


def decide_checkpoint(state: str) -> str:
    """Return the checkpoint of the query that decides, below the path or URL of a job's state."""
    return f"{state}/{DECIDE_OPS}"


def audit_checkpoint(state: str) -> str:
    """Return that of the query that writes rows and copies dead letters."""
    return f"{state}/{AUDIT}"


def units_checkpoint(state: str) -> str:
    """Return that of the query that builds consume queues."""
    return f"{state}/{BUILD_UNITS}"
