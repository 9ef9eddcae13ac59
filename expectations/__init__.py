"""Data quality of the Delta tables: the suites as code, and their validation."""

import warnings

with warnings.catch_warnings():
    # Great Expectations imports modules that are deprecated since 3.11. Where warnings are errors, as in the tests,
    # this package could not be imported.
    warnings.filterwarnings("ignore", "module 'sre_(constants|parse)' is deprecated", DeprecationWarning)
    import great_expectations as _great_expectations

__all__: list[str] = []

del _great_expectations
