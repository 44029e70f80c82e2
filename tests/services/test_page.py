"""The page in a real Chromium, beside a bridge that is a process: every view, each action, a restart, hostile text."""

from __future__ import annotations

import json
import pathlib
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.services import pictures
from tests.services.page import CHROMIUM, HOSTILE, OPTIONS, POISON, Opened, bury, opened, post
from tests.support.access import written
from tests.support.command import Serving, serving

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for this file; each test has a profile of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield browser
        browser.close()


@pytest.fixture
def bridge(tmp_path: pathlib.Path) -> Iterator[Serving]:
    """A bridge in a process of its own."""
    with serving(tmp_path / "data") as started:
        yield started


def live(shown: Opened) -> None:
    """Wait until the page is told how things stand."""
    expect(shown.page.locator("#live")).to_have_text("live")


def test_a_queue_that_nobody_reads_is_found(chromium: Browser, bridge: Serving) -> None:
    """It stands first, in words, and its own view says why; by the keyboard alone."""
    post(bridge.url, "/v1/queues/mail/quiet/messages?create=true", b"x", "text/plain")
    with opened(chromium, bridge.url) as shown:
        page = shown.page
        live(shown)
        row = page.get_by_role("row").filter(has_text="mail/quiet")
        expect(row).to_contain_text("no listener is subscribed")
        page.get_by_role("searchbox").focus()
        page.keyboard.type("quiet")
        link = page.get_by_role("link", name="mail/quiet")
        expect(link).to_be_visible()
        # At once, before the list has followed what was typed.
        page.evaluate("document.querySelector('input[type=search]').dispatchEvent(new Event('input'))")
        link.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("mail/quiet")
        expect(page.get_by_role("list", name="The way of a message")).to_contain_text("1 waiting, 0 leased")
        # The queue's own view goes on being told, whatever the list had in mind still.
        page.wait_for_function("new Promise(go => setTimeout(() => go(true), 300))")
        post(bridge.url, "/v1/queues/mail/quiet/messages", b"x", "text/plain")
        expect(page.get_by_role("list", name="The way of a message")).to_contain_text("2 waiting, 0 leased")


def test_it_follows_what_happens(chromium: Browser, bridge: Serving) -> None:
    """A put is seen without a reload, in the same row; the focus stays where it was."""
    post(bridge.url, "/v1/queues/mail/out/messages?create=true", b"x", "text/plain")
    with opened(chromium, bridge.url) as shown:
        link = shown.page.get_by_role("link", name="mail/out")
        link.focus()
        post(bridge.url, "/v1/queues/mail/out/messages", b"x", "text/plain")
        expect(shown.page.get_by_role("row").filter(has_text="mail/out")).to_contain_text("2 waiting")
        assert shown.page.evaluate("document.activeElement.textContent") == "mail/out"


def test_a_pause_needs_a_word(chromium: Browser, bridge: Serving) -> None:
    """Nothing is changed by a slip: changes are allowed first, and what is done shows."""
    post(bridge.url, "/v1/queues/mail/out/messages?create=true", b"x", "text/plain")
    with opened(chromium, bridge.url, "#/queue/mail/out") as shown:
        page = shown.page
        live(shown)
        expect(page.get_by_role("button", name="Pause")).to_be_disabled()
        page.get_by_label("Allow changes").check()
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Resume")).to_be_enabled()
        with urllib.request.urlopen(f"{bridge.url}/v1/queues/mail/out", timeout=100) as answer:
            assert json.load(answer)["paused"] is True
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("button", name="Pause")).to_be_enabled()


def test_what_was_buried_goes_back(chromium: Browser, bridge: Serving) -> None:
    """Why it failed is read, one and then all of a reason are put back; what is said twice discards the rest."""
    bury(bridge.url, "no price", "no price", "too big", HOSTILE)
    with opened(chromium, bridge.url, f"#/queue/{POISON}") as shown:
        page = shown.page
        live(shown)
        graves = page.get_by_role("region", name="Buried messages").get_by_role("table")
        expect(graves.get_by_role("row")).to_have_count(5)
        graves.locator("summary").first.click()
        expect(graves).to_contain_text("pay/orders")
        expect(graves).to_contain_text("Attempts")
        page.get_by_label("Allow changes").check()
        graves.get_by_role("button", name="Put this back").first.click()
        expect(page.get_by_text("1 put back")).to_be_visible()
        expect(graves.get_by_role("row")).to_have_count(4)
        page.get_by_label("Only those").fill("no price")
        page.get_by_role("button", name="Put back").click()
        expect(graves.get_by_role("row")).to_have_count(3)
        page.get_by_label("Only those").fill("")
        page.get_by_role("button", name="Discard", exact=True).click()
        page.get_by_role("button", name="Keep them").click()
        expect(graves.get_by_role("row")).to_have_count(3)
        page.get_by_role("button", name="Discard", exact=True).click()
        page.get_by_role("button", name="Discard them").click()
        expect(page.get_by_text("2 discarded")).to_be_visible()
        expect(graves.get_by_role("row")).to_have_count(1)


def test_hostile_text_is_text(chromium: Browser, bridge: Serving) -> None:
    """Markup is shown and not made, and what turns or hides writing is named."""
    bury(bridge.url, HOSTILE, "x" * 64 * 1024)
    with opened(chromium, bridge.url, f"#/queue/{POISON}") as shown:
        graves = shown.page.get_by_role("region", name="Buried messages")
        expect(graves).to_contain_text("<img src=x onerror=")
        expect(graves).to_contain_text("\\u202eflipped")
        graves.locator("summary").first.click()
        expect(graves).to_contain_text("\\u001b[31m")
        assert shown.page.locator("main img, main script, main iframe").count() == 0
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_it_comes_back_with_the_bridge(chromium: Browser, bridge: Serving, tmp_path: pathlib.Path) -> None:
    """The bridge is killed and another stands at its address: the page says so meanwhile, and goes on by itself."""
    with opened(chromium, bridge.url, "#/bridge") as shown:
        page = shown.page
        live(shown)
        boot = page.locator("dd").first.text_content()
        bridge.process.kill()
        expect(page.locator("#live")).to_contain_text("not connected")
        address = bridge.url.removeprefix("http://")
        with serving(tmp_path / "again", "--listen", address):
            live(shown)
            expect(page.locator("dd").first).not_to_have_text(boot or "")


def test_a_key_is_asked_for(chromium: Browser, tmp_path: pathlib.Path) -> None:
    """Without one nothing is shown; a wrong one is refused; the right one shows what it grants, and not the bridge."""
    secrets = written(tmp_path / "access.json", {"clerk": {"look": ["mail/out"], "put": ["*"]}})
    with serving(tmp_path / "data", "--auth", "--access", str(tmp_path / "access.json")) as bridge:
        with opened(chromium, bridge.url) as shown:
            page = shown.page
            field = page.get_by_label("This bridge asks for a key")
            expect(field).to_be_focused()
            field.fill("qb_" + "f" * 64)
            page.get_by_role("button", name="Look").click()
            expect(page.get_by_role("alert").filter(has_text="not known here")).to_be_visible()
            field.fill(secrets["clerk"])
            page.get_by_role("button", name="Look").click()
            live(shown)
            page.get_by_role("link", name="Bridge").click()
            expect(page.locator("main")).to_contain_text("'operate' is not granted")
            page.get_by_role("link", name="Queues", exact=True).click()
            live(shown)


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1200, "dark")])
def test_it_fits(chromium: Browser, bridge: Serving, width: int, scheme: str) -> None:
    """On a phone and on a desk, in the light and in the dark, nothing is beyond the edge."""
    bury(bridge.url, "no price")
    post(bridge.url, f"/v1/queues/{'a' * 80}/{'b' * 80}/messages?create=true", b"x", "text/plain")
    size = {"width": width, "height": 700}
    for where in ("", "#/listeners", "#/bridge", f"#/queue/{POISON}"):
        with opened(chromium, bridge.url, where, viewport=size, color_scheme=scheme) as shown:
            live(shown)
            assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), where
            light = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (light == "rgb(251, 250, 248)") == (scheme == "light")


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
        page.get_by_role("button", name="Next").click()
        expect(page.get_by_text("101 to 200 of 10,000")).to_be_visible()
        page.get_by_role("searchbox").fill("q09999")
        expect(page.get_by_text("1 to 1 of 1")).to_be_visible()


def test_the_pictures(chromium: Browser, bridge: Serving, tmp_path: pathlib.Path) -> None:
    """Those of the documentation can be taken anew."""
    pictures.take(chromium, bridge, tmp_path)
    assert {each.name for each in tmp_path.glob("*.png")} == {each.name for each in pictures.PLACE.glob("page-*.png")}
