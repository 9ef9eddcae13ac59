"""The composition root: settings, clock, metrics, the micro-batch and the command line."""
