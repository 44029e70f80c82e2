"""A page in a real Chromium, for the tests of it and for its pictures."""

from __future__ import annotations

import contextlib
import datetime
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, expect

from queuebell.bridge.contract.burial import Attempt, Burial, Earlier, write_burial
from tests.chaos.worker import Options
from tests.support.command import ROOT, environment

CHROMIUM = "/usr/bin/chromium"
# Root's Chromium has no sandbox, and a machine without a network would have it ask its maker for ever.
OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE_MS = 60_000
NOW = datetime.datetime.now(datetime.UTC)
HOSTILE = "<img src=x onerror=document.title='owned'> \u202eflipped \x1b[31m"
POISON = "pay/orders-poison"


class Opened:
    """A page, and what went wrong in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.wrong: list[str] = []
        self.elsewhere: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._console)
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def _console(self, said: ConsoleMessage) -> None:
        # A call that is refused and a bridge that is gone stand there too, and are what some tests are about.
        if said.type == "error" and "attribute" in said.text:
            self.wrong.append(said.text)

    def _dialog(self, dialog: Dialog) -> None:
        self.wrong.append(dialog.message)
        dialog.dismiss()

    def _request(self, asked: Request) -> None:
        if not asked.url.startswith(self.url):
            self.elsewhere.append(asked.url)


@contextlib.contextmanager
def opened(chromium: Browser, url: str, where: str = "", **options: Any) -> Iterator[Opened]:
    """Open the page; at its end nothing went wrong in it, and nobody else was asked for anything."""
    context = chromium.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page = context.new_page()
    shown = Opened(page, url)
    page.goto(f"{url}/{where}")
    try:
        yield shown
        assert shown.wrong == []
        assert shown.elsewhere == []
        assert page.title() == "Queuebell"
    finally:
        context.close()


def live(shown: Opened) -> None:
    """Wait until the page is told how things stand."""
    expect(shown.page.locator("#live")).to_have_text("live")


@contextlib.contextmanager
def working(options: Options) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker process; what it says is not read, and its handlers wait for "go" where they are to hold."""
    worker = subprocess.Popen(
        options.arguments(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        cwd=ROOT,
    )
    try:
        yield worker
    finally:
        worker.kill()
        worker.communicate()


def post(url: str, path: str, body: bytes = b"", media: str = "application/json", **more: str) -> None:
    """Send a request."""
    asked = urllib.request.Request(f"{url}{path}", data=body, method="POST", headers={"Content-Type": media, **more})
    urllib.request.urlopen(asked, timeout=100).read()


def bury(url: str, *reasons: str, trace: str = HOSTILE) -> None:
    """Bury a message for each reason, with the text that tells where it failed."""
    for number, reason in enumerate(reasons):
        before = Earlier("pay/orders", "7", NOW, NOW, "the time before", 5)
        attempts = (Attempt(1, NOW, reason),)
        told = {"trace": trace, "history": attempts, "burials": 2, "earlier": (before,)}
        facts = Burial("pay/orders", str(number), NOW, NOW, reason, 5, **told)
        body = write_burial(facts, f"order {number} {trace}".encode(), 65_536)
        assert body is not None
        post(url, f"/v1/queues/{POISON}/messages", body, "text/plain")
