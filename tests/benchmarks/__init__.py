"""`make bench`: how fast the kernel, the store and the whole job are on this machine, as one JSON document."""
