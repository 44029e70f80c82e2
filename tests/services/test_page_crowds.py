"""The page before ten thousand queues and listeners, and a million buried messages, in a real Chromium.

What may not take long is measured by the browser's own long tasks. On a machine that does other work as well any task
may be long once: a page that does too much at once is so each time, and one that does not is not.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from bridge.queues.embedded.sqlite import SqliteStore
from tests.services.page import POISON, live, opened, post
from tests.support.command import ROOT, Serving, environment, serving

pytestmark = pytest.mark.system

LONG_MS = 100
WATCH = """() => {
  window.tasks = [];
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((each) => each.duration)))
    .observe({ type: "longtask", buffered: true });
}"""
# Three views are drawn, one after the other, without a task that is: a page that freezes draws none so.
FREE = """(most) => new Promise((go) => {
  let views = 0, quiet = 0, seen = window.tasks.length;
  setTimeout(() => go(false), 100000);
  const drawn = new MutationObserver(() => { views += 1; });
  const all = { subtree: true, childList: true, characterData: true, attributes: true };
  drawn.observe(document.querySelector("main"), all);
  setInterval(() => {
    const news = window.tasks.slice(seen);
    seen = window.tasks.length;
    if (news.some((each) => each >= most)) views = quiet = 0;
    else if (views >= 3) quiet += 1; // what was long is told a little later
    if (quiet > 5) go(true);
  }, 100);
})"""


def never_freezes(page: Page) -> None:
    """See the page draw what it is told, without a long task."""
    page.evaluate(WATCH)
    assert page.evaluate(FREE, LONG_MS)




def test_ten_thousand_queues_are_a_hundred_rows(chromium: Browser, bridge: Serving) -> None:
    """What is drawn does not grow with what there is; the last of them is found by its name."""
    for start in range(0, 10_000, 100):
        events = [{"storage_account": "many", "queue_name": f"q{n:05}"} for n in range(start, start + 100)]
        post(bridge.url, "/v1/triggers", json.dumps(events).encode())
    with opened(chromium, bridge.url) as shown:
        page = shown.page
        live(shown)
        expect(page.get_by_text("1 to 100 of 10,000")).to_be_visible()
        assert page.get_by_role("row").count() == 101
        never_freezes(page)
        page.get_by_role("button", name="Next").click()
        expect(page.get_by_text("101 to 200 of 10,000")).to_be_visible()
        expect(page.get_by_role("button", name="Next")).to_be_focused()
        page.get_by_role("searchbox").fill("q09999")
        expect(page.get_by_text("1 to 1 of 1")).to_be_visible()




