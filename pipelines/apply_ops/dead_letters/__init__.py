"""Dead letters: the copies of messages, and those that an earlier process has sent."""
