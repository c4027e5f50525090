"""Debian's Chromium, without a window, and the picture of the page in the docs.

    python tests/cli/demo_page/page_browser.py URL docs/demo-page.jpg

makes that picture anew from a page that runs at URL (``onestream demo page``).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_WIDE = {"width": 1180, "height": 900}
_JPEG_QUALITY = 65
_PATIENCE_MS = 120_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser whose webcam is Chromium's own test picture."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"],
        )
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser, url: str, watch: Callable[[Page], None] | None = None, **context: object
) -> Iterator[Page]:
    """The page at ``url`` in a context of its own, when it has asked the server; ``watch`` sees it before."""
    page = browser.new_context(**{"viewport": _WIDE, **context}).new_page()
    page.set_default_timeout(_PATIENCE_MS)
    if watch is not None:
        watch(page)
    page.goto(url)
    page.get_by_text("Ready.").wait_for()
    yield page
    page.context.close()


def take_picture(browser: Browser, url: str, file: Path) -> None:
    """What the page shows about one of the sample photos, as a JPEG."""
    with opened(browser, url) as page:
        page.get_by_role("button", name="astronaut").click()
        page.get_by_text("astronaut.jpg: done.").wait_for()
        page.screenshot(path=file, full_page=True, type="jpeg", quality=_JPEG_QUALITY)


if __name__ == "__main__":
    with chromium() as found:
        take_picture(found, sys.argv[1], Path(sys.argv[2]))
