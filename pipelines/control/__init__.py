"""How a running job is asked and watched: its socket, its job file, views of its state, metrics."""
