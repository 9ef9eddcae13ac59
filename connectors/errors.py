"""The project's errors, where the connectors' users look for them."""

from broker_state.errors import Corrupt, Fenced, Invalid, PopstreamError, Unavailable

__all__ = ["Corrupt", "Fenced", "Invalid", "PopstreamError", "Unavailable"]
