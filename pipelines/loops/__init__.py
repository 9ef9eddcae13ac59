"""Threads that repeat work: at intervals, or until it succeeds."""
