"""Pops: which queue is popped next, the records of what was leased, and handing the messages out."""
