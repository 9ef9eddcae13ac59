"""The whole protocol in one thread: what one seed does, it does again."""
