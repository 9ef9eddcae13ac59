"""The project's errors, where the connectors' users look for them."""

from broker_state.errors import RESTORE, Corrupt, Fenced, Invalid, PopstreamError, Unavailable

__all__ = ["RESTORE", "Corrupt", "Fenced", "Invalid", "PopstreamError", "Unavailable"]
