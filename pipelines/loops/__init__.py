"""Threads that repeat something: at intervals, or until it succeeds."""
