"""Chooses the form of the kernel for the process of the tests, before any of them imports it.

The sources run: doctests are found in them, and tests look inside. With TEST_FORM=compiled the compiled form
runs. Processes that tests start choose as those of a user do.
"""

import os

import pytest

_FORM = os.environ.get("TEST_FORM", "pure")

with pytest.MonkeyPatch.context() as environment:
    environment.setenv("POPSTREAM_PURE", str(int(_FORM == "pure")))
    from broker_state import KERNEL_FORM

if KERNEL_FORM != _FORM:
    message = f"the kernel is {KERNEL_FORM}, not {_FORM}: run `make setup`"
    raise pytest.UsageError(message)
