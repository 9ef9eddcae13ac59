"""What is already done: how far the log is decided, who owns the state, what a start must reconcile, snapshots."""
