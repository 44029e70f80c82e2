"""What somebody who sees the page for the first time finds by it alone, in a real Chromium, within two minutes each."""

from __future__ import annotations

import json
import pathlib
import urllib.request

import pytest
from playwright.sync_api import Browser, expect

from tests.services.page import HOSTILE, POISON, bury, live, opened, post, working
from tests.services.worker import Options
from tests.support.command import Serving, serving

pytestmark = pytest.mark.system

PUT = b"x"


def test_a_producer_that_forgot_to_publish(chromium: Browser, tmp_path: pathlib.Path) -> None:
    """Work in another store that no trigger told of is found by looks, and the queue says so first and in words."""
    often = {"QUEUEBELL_SWEEP_S": "0.5", "QUEUEBELL_HEARTBEAT_S": "1"}
    with serving(tmp_path / "store") as store, serving(tmp_path / "data", env=often) as bridge:
        post(bridge.url, "/v1/triggers/shop/fine")
        options = Options(store=store.url, bridge=bridge.url, queue=["shop/mute", "shop/fine"])
        with working(options), opened(chromium, bridge.url) as shown:
            page = shown.page
            row = page.get_by_role("row").filter(has_text="shop/mute")
            expect(row).to_contain_text("0")
            for _ in range(3):
                post(store.url, "/v1/queues/shop/mute/messages?create=true", PUT, "text/plain")
            expect(row).to_contain_text("that no trigger had told of")
            expect(row).to_contain_text("does every producer publish after its put?")
            expect(page.get_by_role("row").filter(has_text="shop/fine")).not_to_contain_text("no trigger")
            expect(page.get_by_role("row").nth(1)).to_contain_text("shop/mute")
            page.get_by_role("link", name="shop/mute").click()
            expect(page.get_by_text("a publish was lost, or never sent")).to_be_visible()
            expect(page.get_by_role("list", name="The way of a message")).to_contain_text("No trigger yet")
            looks = page.get_by_role("region", name="What made listeners look")
            expect(looks).to_contain_text("the bridge asked, to make sure")


def test_a_worker_that_hangs(chromium: Browser, bridge: Serving) -> None:
    """Its row tells for how long a handler is at work; the queue's view names worker, message and attempt."""
    busy = Options(store=bridge.url, bridge=bridge.url, queue="shop/quick", name="quick")
    stuck = Options(store=bridge.url, bridge=bridge.url, queue="shop/slow", name="stuck", concurrency=1, hold=True)
    with working(busy), working(stuck) as worker, opened(chromium, bridge.url) as shown:
        page = shown.page
        for queue in ("shop/quick", "shop/slow", "shop/slow"):
            post(bridge.url, f"/v1/queues/{queue}/messages?create=true", PUT, "text/plain")
        slow = page.get_by_role("row").filter(has_text="shop/slow").get_by_role("cell")
        expect(slow.nth(4)).to_contain_text("s")
        expect(page.get_by_role("row").filter(has_text="shop/quick").get_by_role("cell").nth(4)).to_have_text("")
        page.get_by_role("link", name="shop/slow").click()
        work = page.get_by_role("region", name="At work for some seconds").get_by_role("row")
        expect(work.nth(1)).to_contain_text("stuck.0")
        expect(work.nth(1).get_by_role("cell").nth(2)).to_have_text("1")
        expect(page.get_by_role("list", name="The way of a message")).to_contain_text("stuck.0, 0 of 1 free, full")
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
        expect(work).to_have_count(1)


