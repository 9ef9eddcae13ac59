"""A visit of the status page: a tab, and what its console says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.in_process.api_site import TOKEN, ApiSite

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

__all__ = ["SCREENSHOTS", "Visit"]

SCREENSHOTS = Path("var/browser")


class Visit:
    """The page in one tab, which collects what the console says."""

    def __init__(self, browser: Browser, site: ApiSite, width: int, scheme: str) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900 if width > 600 else 844},
            color_scheme="dark" if scheme == "dark" else "light",
            is_mobile=width < 600,
            has_touch=width < 600,
            locale="en-GB",
            timezone_id="Europe/Berlin",
        )
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.site = site
        self._has_token = False

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type in {"error", "warning"}:
            self.complaints.append(said.text)

    def enter(self, hash_: str = "", *, token: str = TOKEN) -> Page:
        """Open a view, with the token."""
        if token and not self._has_token:
            self._has_token = True
            store = f"sessionStorage.setItem('popstream-token', '{token}')"
            self.context.add_init_script(f"if (location.protocol.startsWith('http')) {store}")
        self.page.goto(f"{self.site.url}/{hash_}")
        return self.page
