"""Client histories: what clients sent and were answered, recorded line by line, and the check that judges them."""
