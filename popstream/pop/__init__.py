"""Pops: which queue next, what they bring, and how it is handed out."""
