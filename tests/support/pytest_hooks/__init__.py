"""Hooks of `tests/conftest.py`: which worker runs which file, and one line per file in place of dots."""
