"""A second, plain implementation of docs/semantics.md, and a generator of records for comparing the two."""
