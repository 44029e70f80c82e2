"""The page in a real Chromium, beside a bridge that is a process: every view, each action, a restart, hostile text.

What may not take long is measured by the browser's own long tasks. On a machine that does other work as well any task
may be long once: a page that does too much at once is so each time, and one that does not is not.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, Page, expect

from queuebell.bridge import Bridge, NewMessage
from queuebell.bridge.access import access_file
from queuebell.bridge.contract.burial import Burial, write_burial
from tests.chaos.worker import Options
from tests.services import pictures
from tests.services.page import HOSTILE, NOW, POISON, bury, live, opened, post, working
from tests.support.access import written
from tests.support.command import Serving, serving
from tests.support.processes import PATIENCE_S

pytestmark = pytest.mark.system


def test_a_queue_that_nobody_reads_is_found(chromium: Browser, bridge: Serving) -> None:
    """It stands first, in words, and its own view says why; by the keyboard alone."""
    post(bridge.url, "/v1/queues/mail/quiet/messages?create=true", b"x", "text/plain")
    with opened(chromium, bridge.url) as shown:
        page = shown.page
        live(shown)
        row = page.get_by_role("row").filter(has_text="mail/quiet")
        expect(row).to_contain_text("no worker is connected")
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


def test_messages_are_looked_at(chromium: Browser, bridge: Serving) -> None:
    """Where they are, and one by its id; nothing is asked before somebody asks, and what is gone is said in words."""
    items = [{"body": f"{HOSTILE} {number}"} for number in range(40)]
    put = json.dumps({"messages": items[:32]}).encode()
    post(bridge.url, "/v1/queues/mail/look/messages?create=true", put)
    post(bridge.url, "/v1/queues/mail/look/messages", json.dumps({"messages": items[32:]}).encode())
    late = {"messages": [{"body": "late", "visible_after_ms": 600_000, "headers": {"kind": "letter"}}]}
    post(bridge.url, "/v1/queues/mail/look/messages", json.dumps(late).encode())
    post(bridge.url, "/v1/queues/mail/look/receive", b'{"max": 2, "visibility_timeout_s": 600}')
    with opened(chromium, bridge.url, "#/queue/mail/look") as shown:
        page = shown.page
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        live(shown)
        expect(page.get_by_role("heading", name="Messages")).to_be_visible()
        assert not [url for url in asked if "/peek" in url or "/messages/" in url]
        table = page.get_by_role("region", name="Messages").get_by_role("table")
        page.get_by_role("button", name="Waiting").click()
        expect(table.get_by_role("row")).to_have_count(33)
        page.get_by_role("button", name="Next").click()
        expect(table.get_by_role("row")).to_have_count(7)
        page.get_by_role("button", name="Running").click()
        expect(table.get_by_role("row")).to_have_count(3)
        page.get_by_role("button", name="Later").click()
        expect(table.get_by_role("row")).to_have_count(2)
        table.locator("summary").click()
        expect(table).to_contain_text("kind: letter")
        page.get_by_role("searchbox", name="Id").fill(f"{1:016x}")
        page.get_by_role("button", name="Find").click()
        expect(table).to_contain_text("Running")
        page.get_by_role("searchbox", name="Id").fill("gone")
        page.keyboard.press("Enter")
        expect(page.get_by_text("there is no such message")).to_be_visible()


def test_messages_are_put_discarded_and_emptied(chromium: Browser, bridge: Serving) -> None:
    """Only where changes are allowed; a discard is taken back for a while, and emptying asks for the queue's name."""
    post(bridge.url, "/v1/queues/mail/act/messages?create=true", b'{"messages": [{"body": "one"}, {"body": "two"}]}')
    with opened(chromium, bridge.url, "#/queue/mail/act") as shown:
        page = shown.page
        live(shown)
        table = page.get_by_role("region", name="Messages").get_by_role("table")
        page.get_by_role("button", name="Waiting").click()
        expect(table.get_by_role("row")).to_have_count(3)
        discard = table.get_by_role("button", name="Discard")
        expect(discard.first).to_be_disabled()
        expect(page.get_by_role("button", name="Empty the queue")).to_be_disabled()
        page.get_by_label("Allow changes").check()
        discard.first.dblclick()
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#undoing")).to_be_empty()
        expect(table.get_by_role("row")).to_have_count(3)
        discard.last.click()
        discard.first.click()
        page.get_by_role("button", name="Undo").last.click()
        expect(table.get_by_role("row")).to_have_count(2)  # the other one is carried out
        expect(table).to_contain_text("one")
        page.get_by_label("With this text").fill("no such text")
        expect(page.get_by_text("No message waits.")).to_be_visible()
        page.get_by_label("With this text").fill("on")
        expect(table.get_by_role("row")).to_have_count(2)
        table.get_by_role("checkbox").check()
        page.get_by_role("button", name="Discard 1 selected").click()
        page.get_by_role("link", name="Listeners").click()
        expect(page.locator("#undoing")).to_contain_text("message ")
        expect(page.locator("#undoing")).to_be_empty()  # it is done on another view, too
        page.go_back()
        page.get_by_role("button", name="Waiting").click()
        expect(page.get_by_text("No message waits.")).to_be_visible()
        post(bridge.url, "/v1/queues/mail/act/messages", b"three", "text/plain")
        page.get_by_text("Put a message").click()
        page.get_by_role("textbox", name="Body").fill(HOSTILE)
        page.get_by_label("Id, if it must not be put twice").fill("mine")
        page.get_by_label("Delay in seconds").fill("90")
        page.get_by_role("button", name="Put", exact=True).click()
        expect(page.get_by_text("Put message ")).to_be_visible()
        page.get_by_role("button", name="Later").click()
        expect(table).to_contain_text("mine")
        page.get_by_role("button", name="Put", exact=True).click()
        expect(page.get_by_text("This id was put before")).to_be_visible()
        page.get_by_text("Watch what happens").click()
        expect(page.get_by_text("Nothing has happened since.")).to_be_visible()
        table.locator("summary").first.click()
        table.get_by_text("Follow this message").click()
        post(bridge.url, "/v1/queues/mail/act/receive", b"{}")
        expect(page.get_by_role("region", name="Events")).to_contain_text("attempt 1, leased for 30 s")
        post(bridge.url, "/v1/queues/mail/act/messages", b"four", "text/plain")
        expect(page.get_by_role("region", name="Events").get_by_role("row")).to_have_count(3)
        page.get_by_role("button", name="Empty the queue").click()
        expect(page.get_by_text("This deletes 1 messages that wait and 2 that are delayed")).to_be_visible()
        page.get_by_label("Type the queue's name").fill("mail/ac")
        expect(page.get_by_role("button", name="Delete them for good")).to_be_disabled()
        page.get_by_label("Type the queue's name").fill("mail/act")
        page.get_by_role("button", name="Delete them for good").click()
        expect(page.get_by_text("The queue was emptied.")).to_be_visible()
        history = page.get_by_role("region", name="Marks")
        page.get_by_role("button", name="5 minutes").click()
        expect(history).to_contain_text("emptied")
        page.get_by_text("As a table").click()
        expect(page.get_by_role("region", name="Steps").get_by_role("row")).not_to_have_count(1)


def test_the_list_shows_what_is_wanted(chromium: Browser, bridge: Serving) -> None:
    """Twelve queues on a small screen; chips, order and search stand in the address, and what is not there is blank."""
    for number in range(14):
        request = urllib.request.Request(f"{bridge.url}/v1/queues/calm/q-{number:02}", method="PUT")
        urllib.request.urlopen(request, timeout=100).read()
    post(bridge.url, "/v1/queues/calm/q-03/pause")
    bury(bridge.url, "no price")
    with opened(chromium, bridge.url, "#/?filter=calm&sort=name", viewport={"width": 1100, "height": 760}) as shown:
        page = shown.page
        live(shown)
        rows = page.get_by_role("region", name="Queues").get_by_role("row")
        expect(rows).to_have_count(15)
        last = rows.nth(12).bounding_box()
        assert last is not None and last["y"] + last["height"] <= 760
        assert [cell.inner_text() for cell in rows.nth(1).get_by_role("cell").all()] == ["calm/q-00", *[""] * 7]
        page.get_by_label("More columns").check()
        expect(rows.nth(0)).to_contain_text("Receives")
        page.reload()
        expect(rows.nth(0)).to_contain_text("Receives")
        page.get_by_label("More columns").uncheck()
        page.get_by_role("button", name="Paused").click()
        expect(rows).to_have_count(2)
        assert page.url.endswith("#/?filter=calm&only=paused&sort=name")
        page.reload()
        expect(page.get_by_role("region", name="Queues").get_by_role("row")).to_have_count(2)
        expect(page.get_by_label("Find a queue")).to_have_value("calm")
        page.get_by_label("Find a queue").fill("")
        page.get_by_role("button", name="Dead letters").first.click()
        expect(page.get_by_role("link", name=POISON)).to_be_visible()
        expect(page.get_by_role("link", name="calm/q-00")).to_be_hidden()


def test_dead_letters_are_chosen_one_by_one(chromium: Browser, bridge: Serving) -> None:
    bury(bridge.url, "no price", "too big", "no price", "other")
    with opened(chromium, bridge.url, f"#/queue/{POISON}?reason=no+price") as shown:
        page = shown.page
        live(shown)
        graves = page.get_by_role("region", name="Dead letters").get_by_role("table")
        expect(graves.get_by_role("row")).to_have_count(3)
        page.get_by_label("Only with").fill("")
        expect(graves.get_by_role("row")).to_have_count(5)
        expect(graves.get_by_role("checkbox").first).to_be_disabled()
        page.get_by_label("Allow changes").check()
        for number in (1, 3):
            graves.get_by_role("row").nth(number).get_by_role("checkbox").check()
        page.get_by_role("button", name="Replay 2 selected").click()
        expect(page.get_by_text("2 replayed")).to_be_visible()
        expect(graves.get_by_role("row")).to_have_count(3)
        graves.get_by_role("checkbox").first.check()
        page.get_by_role("button", name="Discard 1 selected").click()
        page.get_by_role("button", name="Discard for good").click()
        expect(page.get_by_text("1 discarded")).to_be_visible()
        expect(graves).to_contain_text("other")


def test_a_dead_letter_is_edited_and_returned(chromium: Browser, bridge: Serving) -> None:
    bury(bridge.url, "no price")
    post(bridge.url, "/v1/queues/pay/orders/messages?create=true", b'{"messages": [{"body": "other"}]}')
    with opened(chromium, bridge.url, "#/queue/pay/orders") as shown:
        page = shown.page
        live(shown)
        page.get_by_role("searchbox", name="Id").fill("0")  # the one that it had there
        page.get_by_role("button", name="Find").click()
        page.get_by_role("link", name="Why, and what to do", exact=True).click()
        graves = page.get_by_role("region", name="Dead letters").get_by_role("table")
        expect(graves.get_by_role("row")).to_have_count(2)
        page.get_by_label("Allow changes").check()
        graves.locator("summary").first.click()
        graves.get_by_label("Body, to be edited").fill("with a price")
        graves.get_by_role("button", name="Edit and return").click()
        expect(page.get_by_text("was returned to pay/orders with this body")).to_be_visible()
        expect(page.get_by_text("1 discarded")).to_be_hidden()
    with urllib.request.urlopen(f"{bridge.url}/v1/queues/pay/orders/peek", timeout=100) as answer:
        assert [each["body"] for each in json.load(answer)["messages"]][-1] == "with a price"


def test_what_was_buried_goes_back(chromium: Browser, bridge: Serving) -> None:
    """Why it failed is read, one and then all of a reason are put back; what is said twice discards the rest."""
    bury(bridge.url, "no price", "no price", "too big", HOSTILE)
    with opened(chromium, bridge.url, f"#/queue/{POISON}") as shown:
        page = shown.page
        live(shown)
        graves = page.get_by_role("region", name="Dead letters").get_by_role("table")
        expect(graves.get_by_role("row")).to_have_count(5)
        graves.locator("summary").first.click()
        expect(graves).to_contain_text("pay/orders")
        expect(graves).to_contain_text("Attempts")
        page.get_by_label("Allow changes").check()
        graves.get_by_role("button", name="Replay this").first.click()
        expect(page.get_by_text("1 replayed")).to_be_visible()
        expect(graves.get_by_role("row")).to_have_count(4)
        page.get_by_label("Only with").fill("no price")
        expect(graves.get_by_role("row")).to_have_count(2)
        page.get_by_role("button", name="Replay", exact=True).click()
        page.get_by_role("button", name="Put them back").click()
        expect(page.get_by_text("0 found in 2, which are all")).to_be_visible()
        page.get_by_label("Only with").fill("")
        expect(graves.get_by_role("row")).to_have_count(3)
        graves.get_by_role("button", name="Discard this").first.click()
        expect(page.get_by_text("This deletes this message.")).to_be_visible()
        page.get_by_role("button", name="Keep").click()
        page.get_by_role("button", name="Discard", exact=True).click()
        page.get_by_role("button", name="Keep").click()
        expect(graves.get_by_role("row")).to_have_count(3)
        page.get_by_role("button", name="Discard", exact=True).click()
        page.get_by_role("button", name="Discard for good").click()
        expect(page.get_by_text("2 discarded")).to_be_visible()
        expect(graves.get_by_role("row")).to_have_count(1)


def test_hostile_text_is_text(chromium: Browser, bridge: Serving, tmp_path: pathlib.Path) -> None:
    """Names, reasons, tracebacks and bodies: markup is shown and not made; what turns or hides writing is named."""
    bury(bridge.url, HOSTILE, "x" * 64 * 1024)
    post(bridge.url, f"/v1/queues/{POISON}/messages", b"y" * 60_000, "text/plain")
    name = "<script>document.title='owned'</script>" + "&lt;b&gt;" * 10
    options = Options(store=bridge.url, bridge=bridge.url, queue="pay/orders", name=name)
    with opened(chromium, bridge.url, f"#/queue/{POISON}") as shown, working(options):
        page = shown.page
        graves = page.get_by_role("region", name="Dead letters")
        expect(graves).to_contain_text("<img src=x onerror=")
        expect(graves).to_contain_text("\\u202eflipped")
        for number in range(3):
            graves.locator("summary").nth(number).click()
        expect(graves).to_contain_text("\\u001b[31m")
        expect(graves).to_contain_text("Body, 60,000 bytes")
        assert page.locator("main img, main script, main iframe, main b img").count() == 0
        assert page.evaluate(FITS)
        for where in ("#/listeners", "#/queue/pay/orders", "#/queue/%E0%A4%A/%00", "#/queue/<img src=x>/b"):
            page.goto(f"{bridge.url}/{where}")
            if "%" not in where and "<" not in where:
                expect(page.locator("main")).to_contain_text("<script>document.title=")
            assert page.locator("main img, main script, main iframe").count() == 0
            assert page.evaluate(FITS)


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
            field = page.get_by_label("Key or token of this bridge")
            expect(field).to_be_focused()
            field.fill("qb_" + "f" * 64)
            page.get_by_role("button", name="Open").click()
            expect(page.get_by_role("alert").filter(has_text="the key is unknown")).to_be_visible()
            field.fill(secrets["clerk"])
            page.get_by_role("button", name="Open").click()
            live(shown)
            page.get_by_role("link", name="Bridge").click()
            expect(page.locator("main")).to_contain_text("'operate' is not granted")
            page.get_by_role("link", name="Queues", exact=True).click()
            live(shown)


def test_a_grant_that_is_lost_is_said(chromium: Browser, tmp_path: pathlib.Path) -> None:
    """What was shown goes with it, in words, and comes back with it by itself; a key that is gone is asked for."""
    access = tmp_path / "access.json"
    secrets = written(access, {"clerk": {"look": ["mail/out"]}})
    with serving(tmp_path / "data", "--auth", "--access", str(access)) as bridge:
        with opened(chromium, bridge.url, "#/queue/mail/out") as shown:
            page = shown.page
            page.get_by_label("Key or token of this bridge").fill(secrets["clerk"])
            page.get_by_role("button", name="Open").click()
            live(shown)
            for granted in ({"look": ["mail/other"]}, {"look": ["mail/out"]}):
                access_file.change(access, lambda old, now=granted: type(old)(principals={"clerk": now}, keys=old.keys))
                if granted["look"] == ["mail/other"]:
                    expect(page.get_by_role("alert").filter(has_text="'look' is not granted")).to_be_visible()
                    expect(page.get_by_role("heading", level=1)).to_have_count(0)
            live(shown)
            expect(page.get_by_role("heading", level=1)).to_have_text("mail/out")
            access_file.change(access, lambda old: type(old)())
            expect(page.get_by_label("Key or token of this bridge")).to_be_focused()
            expect(page.get_by_role("heading", level=1)).to_have_count(0)


FITS = "[document.body, ...document.querySelectorAll('.wide')].every((each) => each.scrollWidth <= each.clientWidth)"
CONTRAST = """() => {
  const channels = (color) => color.match(/[0-9.]+/g).slice(0, 3).map((each) => {
    const part = each / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  const light = (color) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * channels(color)[i], 0);
  const probe = document.body.appendChild(document.createElement("i"));
  const worst = [];
  for (const ground of ["body", "header"]) {
    const below = light(getComputedStyle(document.querySelector(ground)).backgroundColor);
    for (const kind of ["", "dim", "bad", "good", "name"]) {
      probe.className = kind;
      const above = light(getComputedStyle(kind === "name" ? document.querySelector("header .name") : probe).color);
      worst.push((Math.max(above, below) + 0.05) / (Math.min(above, below) + 0.05));
    }
  }
  probe.remove();
  return Math.min(...worst);
}"""


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1200, "dark")])
def test_it_is_read_with_weak_eyes_and_without(chromium: Browser, bridge: Serving, width: int, scheme: str) -> None:
    """Colours stand out by 4.5 to 1; pictures are told in words; the keyboard's choice counts; no table is too wide."""
    post(bridge.url, "/v1/queues/mail/out/messages?create=true", b"x", "text/plain")
    post(bridge.url, f"/v1/queues/{'a' * 80}/{'b' * 80}/messages?create=true", b"x", "text/plain")
    size = {"width": width, "height": 700}
    with opened(chromium, bridge.url, viewport=size, color_scheme=scheme) as shown:
        page = shown.page
        live(shown)
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (light == "rgb(251, 250, 248)") == (scheme == "light")
        assert page.evaluate(FITS)
        assert page.evaluate(CONTRAST) >= 4.5
        expect(page.get_by_role("figure", name="Each second")).to_contain_text("puts and triggers")
        expect(page.get_by_role("figure", name="From trigger to wake")).to_contain_text("half within")
        page.get_by_role("link", name="mail/out").press("Enter")
        expect(page.locator("main")).to_be_focused()
        way = page.get_by_role("list", name="The way of a message").get_by_role("listitem")
        expect(way).to_have_count(4)
        expect(way.nth(3)).to_contain_text("No listener, at this bridge")
        expect(page.locator("svg.way .bad").first).to_be_visible()
        named = "(each) => each.labels?.length || each.textContent.trim()"
        assert page.evaluate(f"[...document.querySelectorAll('input, select, button')].every({named})")
        assert page.evaluate("[...document.querySelectorAll('main svg')].every((each) => each.ariaHidden === 'true')")


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
                post(store.url, "/v1/queues/shop/mute/messages?create=true", b"x", "text/plain")
            expect(row).to_contain_text("work without a trigger was found")
            expect(row).to_contain_text("does every producer publish after its put?")
            expect(page.get_by_role("row").filter(has_text="shop/fine")).not_to_contain_text("without a trigger")
            expect(page.get_by_role("row").nth(1)).to_contain_text("shop/mute")
            page.get_by_role("link", name="shop/mute").click()
            expect(page.get_by_text("a publish was lost, or never sent")).to_be_visible()
            expect(page.get_by_role("list", name="The way of a message")).to_contain_text("No trigger yet")
            looks = page.get_by_role("region", name="Wake sources")
            expect(looks).to_contain_text("sweep")


def test_a_worker_that_hangs(chromium: Browser, bridge: Serving) -> None:
    """Its row tells for how long a handler is at work; the queue's view names worker, message and attempt."""
    busy = Options(store=bridge.url, bridge=bridge.url, queue="shop/quick", name="quick")
    stuck = Options(store=bridge.url, bridge=bridge.url, queue="shop/slow", name="stuck", concurrency=1, hold=True)
    with working(busy), working(stuck) as worker, opened(chromium, bridge.url) as shown:
        page = shown.page
        for queue in ("shop/quick", "shop/slow", "shop/slow"):
            post(bridge.url, f"/v1/queues/{queue}/messages?create=true", b"x", "text/plain")
        page.get_by_label("More columns").check()
        slow = page.get_by_role("row").filter(has_text="shop/slow").get_by_role("cell")
        expect(slow.nth(4)).to_contain_text("s")
        expect(page.get_by_role("row").filter(has_text="shop/quick").get_by_role("cell").nth(4)).to_have_text("")
        page.get_by_role("link", name="shop/slow").click()
        work = page.get_by_role("region", name="Long-running").get_by_role("row")
        expect(work.nth(1)).to_contain_text("stuck.0")
        expect(work.nth(1).get_by_role("cell").nth(2)).to_have_text("1")
        expect(page.get_by_role("list", name="The way of a message")).to_contain_text("stuck.0, 0 of 1 free, full")
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
        expect(work).to_have_count(0)  # nothing is shown where nothing runs for long


LONG_MS = 100
MILLION = 313 * 3200
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


@pytest.mark.long
def test_a_million_dead_letters_are_a_hundred_rows(chromium: Browser, tmp_path: pathlib.Path) -> None:
    """Their list, a search that looks at some, and the list of queues beside them do not freeze."""
    facts = Burial("pay/orders", "7", NOW, NOW, "no price", 5)
    body = write_burial(facts, b"order 17", 65_536)
    assert body is not None

    async def fill() -> None:
        async with Bridge(tmp_path / "data") as bridge:
            for _ in range(MILLION // 3200):  # a hundred puts go to the disk at once
                await asyncio.gather(*(bridge.store.put(POISON, [NewMessage(body)] * 32) for _ in range(100)))

    with ThreadPoolExecutor(1) as thread:  # this one has the browser's loop
        thread.submit(asyncio.run, fill()).result()
    with serving(tmp_path / "data") as bridge, opened(chromium, bridge.url) as shown:
        page = shown.page
        page.set_default_timeout(1000 * PATIENCE_S)
        live(shown)
        expect(page.get_by_role("row").nth(1)).to_contain_text(f"{MILLION:,}")
        never_freezes(page)
        page.goto(f"{bridge.url}/#/queue/{POISON}")
        expect(page.get_by_role("region", name="Dead letters").get_by_role("row").nth(1)).to_contain_text("no price")
        never_freezes(page)
        page.get_by_role("searchbox").first.fill("another")
        never_freezes(page)


def test_the_pictures(chromium: Browser, bridge: Serving, tmp_path: pathlib.Path) -> None:
    pictures.take(chromium, bridge, tmp_path)
    assert {each.name for each in tmp_path.glob("*.png")} == {each.name for each in pictures.PLACE.glob("page-*.png")}
