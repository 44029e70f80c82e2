"""The pictures of the page in the documentation: ``python -m tests.services.pictures`` takes them anew."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from tests.services.page import CHROMIUM, OPTIONS, bury, opened, post
from tests.support.command import ROOT, Serving, serving

PLACE: Final = ROOT / "docs" / "images"


def take(chromium: Browser, bridge: Serving, place: pathlib.Path) -> None:
    """Have something happen at a bridge, and take a picture of each view."""
    for name in ("welcome", "receipts", "digests"):
        post(bridge.url, f"/v1/queues/mail/{name}/messages?create=true", b"x", "text/plain")
    post(bridge.url, "/v1/triggers/billing/orders")
    bury(bridge.url, "ValueError: no price for order 17", "ValueError: no price for order 18", "KeyError: 'customer'")
    size = {"width": 1100, "height": 640}
    with opened(chromium, bridge.url, viewport=size) as shown:
        shown.page.get_by_role("link", name="mail/welcome").wait_for()
        shown.page.screenshot(path=place / "page-queues.png", animations="disabled")
    with opened(chromium, bridge.url, "#/queue/pay/orders-poison", viewport=size, color_scheme="dark") as shown:
        shown.page.locator("summary").first.click()
        shown.page.get_by_role("heading", name="Buried").scroll_into_view_if_needed()
        shown.page.screenshot(path=place / "page-buried.png", animations="disabled")


def main() -> None:
    """Take them into the documentation."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(pathlib.Path(folder) / "data") as bridge,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        take(browser, bridge, PLACE)
        browser.close()


if __name__ == "__main__":
    main()
