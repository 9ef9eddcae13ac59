"""Recorded histories: how they are replayed, and those that were made here for what no recording has."""
