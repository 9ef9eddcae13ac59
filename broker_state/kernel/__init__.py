"""The state machine: `decide` takes one record and changes the state of its queue. No clock, no randomness, no I/O."""
