"""A real browser for the page: Chromium, and what it does that it should not."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHOTS = Path(__file__).parents[2] / ".reports" / "screenshots"
"""Pictures that tests leave, for who wants to look at them; git does not see them."""

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


class NoBrowser(Exception):
    """Why there is none here."""


@contextmanager
def running() -> Iterator[Browser]:
    """A headless Chromium without any network but loopback. Raises `NoBrowser`."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NoBrowser(f"playwright cannot be imported: {error}") from error
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise NoBrowser("no Chromium here (apt-get install chromium, or name one in CHROMIUM)")
    arguments = [
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    ]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments, timeout=90_000)
        try:
            yield browser
        finally:
            browser.close()


def eventually(page: Page, condition: Callable[[], object]) -> None:
    """Wait until a condition holds, while the page goes on."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"not true within a minute: {condition}"
        page.wait_for_timeout(20)


def rested(page: Page, expression: str) -> Any:
    """The value of an expression, once it has been the same for half a second: what moves has come to its end."""
    seen, since = page.evaluate(expression), time.monotonic()
    while time.monotonic() < since + 0.5:
        page.wait_for_timeout(50)
        if (now := page.evaluate(expression)) != seen:
            seen, since = now, time.monotonic()
    return seen


@dataclass
class Watch:
    """A page, and all that it must never do."""

    page: Page
    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    origin: str = ""

    def attach(self) -> Watch:
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.page.on("popup", lambda popup: self.foreign.append(f"popup {popup.url}"))
        return self

    def open(self, url: str) -> Page:
        """Go to a view's address and wait until a row is chosen."""
        split = urlsplit(url)
        self.origin = f"{split.scheme}://{split.netloc}"
        self.page.goto(url)
        self.page.wait_for_selector(".row.selected", timeout=60_000)
        return self.page

    def _asked(self, url: str) -> None:
        if not url.startswith((f"{self.origin}/", "data:")):
            self.foreign.append(url)

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def until(self, truth: str, arg: Any = None) -> None:
        """Wait until an expression, or a function of ``arg``, is true.

        Playwright's own way of waiting evaluates text again and again, which the page's policy refuses.
        """
        end = time.monotonic() + 60
        while not self.page.evaluate(truth, arg):
            assert time.monotonic() < end, f"not true within a minute: {truth}"
            self.page.wait_for_timeout(50)

    def clean(self) -> None:
        """Fails where anything was asked of elsewhere, thrown, or popped up."""
        assert (self.foreign, self.errors, self.dialogs) == ([], [], [])

    def shot(self, name: str) -> Path:
        """A picture for people."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        path = SHOTS / f"{name}.png"
        self.page.screenshot(path=str(path))
        return path
