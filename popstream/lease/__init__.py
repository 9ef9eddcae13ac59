"""Leases: the messages that a consumer holds, and how their leases are renewed, settled and released."""
