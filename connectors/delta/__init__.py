"""The audit history in Delta Lake: table schemas, the rows' way through the outbox, and their one commit."""
