"""Mistakes that somebody could make in the kernel, and that the suite has to notice."""
