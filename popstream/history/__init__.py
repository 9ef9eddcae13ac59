"""Client histories: what clients asked and were told, recorded line by line, and the check that judges them."""
