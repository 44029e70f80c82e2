"""The pictures of the page in the documentation: ``python -m tests.services.pictures`` takes them anew."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Final

from playwright.sync_api import Browser, expect, sync_playwright

from tests.chaos.worker import Options
from tests.services.page import CHROMIUM, OPTIONS, bury, live, opened, post, working
from tests.support.command import ROOT, Serving, serving

TRACE: Final = """Traceback (most recent call last):
  File "worker.py", line 12, in charge
    total = price_of(order)
  File "prices.py", line 31, in price_of
    raise ValueError(f"no price for {order}")
ValueError: no price for order 17
"""
PLACE: Final = ROOT / "docs" / "images"


def take(chromium: Browser, bridge: Serving, place: pathlib.Path) -> None:
    """Have something happen at a bridge, and take a picture of each view."""
    for name in ("welcome", "receipts", "digests"):
        post(bridge.url, f"/v1/queues/mail/{name}/messages?create=true", b"x", "text/plain")
    post(bridge.url, "/v1/triggers/billing/orders")
    reasons = "ValueError: no price for order 17", "ValueError: no price for order 18", "KeyError: 'customer'"
    bury(bridge.url, *reasons, trace=TRACE)
    busy = Options(store=bridge.url, bridge=bridge.url, queue="shop/orders", name="worker", listeners=3, concurrency=4)
    stuck = Options(store=bridge.url, bridge=bridge.url, queue="shop/orders", name="late", concurrency=1, hold=True)
    size = {"width": 1100, "height": 760}
    with working(stuck), opened(chromium, bridge.url, "#/queue/shop/orders", viewport=size) as shown:
        page, way = shown.page, shown.page.get_by_role("list", name="The way of a message")
        post(bridge.url, "/v1/queues/shop/orders/messages?create=true", b"x", "text/plain")
        expect(way).to_contain_text("late.0, 0 of 1 free")
        with working(busy):
            expect(way).to_contain_text("worker.2")
            work = page.get_by_role("region", name="Long-running")
            while not work.get_by_role("row").nth(1).is_visible():
                for _ in range(10):
                    post(bridge.url, "/v1/queues/shop/orders/messages", b"x", "text/plain")
            page.screenshot(path=place / "page-queue.png", animations="disabled")
            page.get_by_role("link", name="Queues", exact=True).click()
            page.get_by_role("link", name="mail/welcome").wait_for()
            line = page.get_by_role("figure", name="Each second").locator("path.line.two")
            while (line.get_attribute("d") or "").count("L") < 12:
                post(bridge.url, "/v1/queues/shop/orders/messages", b"x", "text/plain")
            page.screenshot(path=place / "page-queues.png", animations="disabled")
    with opened(chromium, bridge.url, "#/queue/pay/orders-poison", viewport=size, color_scheme="dark") as shown:
        shown.page.locator("summary").first.click()
        shown.page.get_by_role("heading", name="Dead letters", exact=True).scroll_into_view_if_needed()
        shown.page.screenshot(path=place / "page-buried.png", animations="disabled")
    phone = {"width": 390, "height": 844}
    with opened(chromium, bridge.url, "#/queue/mail/welcome", viewport=phone, color_scheme="dark") as shown:
        live(shown)
        shown.page.screenshot(path=place / "page-phone.png", animations="disabled")


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
