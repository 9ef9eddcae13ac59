"""What "already done" means: query identity, receipts and snapshots."""
