"""Sends: which messages travel together, in what order, and what became of each."""
