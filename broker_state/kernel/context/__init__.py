"""What a record is decided on and what comes of it: the queue and its lanes, the operation, the decision."""
