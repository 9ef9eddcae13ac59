"""How state is laid out: keys, value formats, the overlay of one micro-batch, and the RocksDB store."""
