"""A headless Chromium of the system: `make browser-test`, with `BROWSER=/path/to/chromium` for another one.

Only these tests need the package playwright, and only they import it: `make test` leaves them out.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SCREENSHOTS = Path(__file__).parents[2] / "var" / "browser"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser, as Playwright's."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - see above

    found = os.environ.get("BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "there is no Chromium: install the package chromium, or set BROWSER"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """The folder for pictures, to be looked at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS
