"""A headless Chromium of this machine: `make browser-test`, with `CHROMIUM=/path/to/chromium` for another one.

Only these tests need the package playwright, and only they import it: `make test` leaves them out.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start Chromium; without one the tests fail, for a skipped test says nothing about the page."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - see above

    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.fail(f"there is no {' or '.join(NAMES)} on PATH: install Chromium, or name it by CHROMIUM=/path")
    with sync_playwright() as playwright:
        # Without its own sandbox where root runs it, as in containers.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=program, args=options)
        yield opened
        opened.close()
