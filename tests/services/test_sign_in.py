"""Signing in for the page in a real Chromium: at a real OpenID provider, by its own form, beside a bridge."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.issuer import IssuerSettings
from queuebell.bridge.http.page.assets import POLICY
from tests.services.page import Opened, live, opened
from tests.support.access import written
from tests.support.background_server import BackgroundServer
from tests.support.command import Serving, serving
from tests.support.openid_provider import CLIENT, PASSWORD, provider
from tests.support.processes import PATIENCE_S, free_port
from tests.support.web import serving as serving_here

pytestmark = pytest.mark.system

GRANTS = {"clerk": {"look": ["mail/out"]}, "chief": {"look": ["*"], "manage": ["*"], "put": ["*"]}}


@contextlib.contextmanager
def signing_in(folder: pathlib.Path, secret: str = "") -> Iterator[tuple[Serving, BackgroundServer]]:
    """A bridge that people sign in at, and the provider where they do."""
    written(folder / "access.json", GRANTS)
    address = f"127.0.0.1:{free_port()}"
    with provider(folder, f"http://{address}/", "clerk", "chief", "stranger", secret=secret) as issuer:
        file = folder / "queuebell.toml"
        file.write_text(
            f'auth = true\naccess = "{folder}/access.json"\n[[issuer]]\nissuer = "{issuer.url}"\n'
            f'audience = "programs"\njwks = "{issuer.url}/.well-known/jwks.json"\nclaim = "preferred_username"\n'
            f'client_id = "{CLIENT}"\nredirect_uri = "http://{address}/"\n'
            + ('client_secret_env = "SECRET"\n' if secret else "")
        )
        words = ("--config", str(file), "--listen", address)
        with serving(folder / "data", *words, env={"SECRET": secret} if secret else None) as bridge:
            yield bridge, issuer


def sign_in(page: Page, name: str, answer: str = "Authorize") -> None:
    """Go to the provider, say who one is, and answer what it asks."""
    page.get_by_role("button", name="Sign in at 127.0.0.1").click()
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.locator(f"input[value={answer}]").click()


def only_went_there(shown: Opened, issuer: BackgroundServer) -> None:
    """The browser went to the issuer, and the page asked nobody but its bridge."""
    there = issuer.url.removesuffix("/o")
    assert shown.elsewhere
    assert all(each.startswith(there) for each in shown.elsewhere)
    shown.elsewhere.clear()


@pytest.mark.parametrize("secret", ["", "s3cret: +&é"], ids=["public", "confidential"])
def test_one_signs_in_and_sees_what_is_granted(chromium: Browser, tmp_path: pathlib.Path, secret: str) -> None:
    """By the provider's form, back to the view, read-only; out again for good; a stranger's link shows nothing."""
    with signing_in(tmp_path, secret) as (bridge, issuer), opened(chromium, bridge.url, "#/bridge") as shown:
        page = shown.page
        sent: list[str] = []
        page.on("response", lambda answer: sent.append(answer.headers.get("content-security-policy", "none")))
        asked: list[tuple[bool, Request]] = []
        page.on("request", lambda each: asked.append((page.url.startswith(bridge.url), each)))
        sign_in(page, "clerk")
        expect(page.locator("main")).to_contain_text("'operate' is not granted")
        assert page.url == f"{bridge.url}/#/bridge"
        assert POLICY in sent
        page.get_by_role("link", name="Queues", exact=True).click()
        live(shown)
        expect(page.get_by_label("Allow changes")).not_to_be_checked()
        token = page.evaluate("sessionStorage.getItem('queuebell-key')")
        assert token.count(".") == 2
        assert not [each.url for _, each in asked if token in each.url]
        ours = [each for by_us, each in asked if by_us and not each.url.startswith(bridge.url)]
        assert ours and all(each.is_navigation_request() for each in ours)
        page.goto(f"{bridge.url}/?error=<img+src=x>&error_description=call+this+number&state=x")
        expect(page.locator("#said")).to_contain_text("was not started in this tab")
        live(shown)
        expect(page.locator("body")).not_to_contain_text("call this number")
        assert page.evaluate("sessionStorage.getItem('queuebell-key')") == token
        page.get_by_role("button", name="Sign out clerk").click()
        expect(page.get_by_role("button", name="Sign in at 127.0.0.1")).to_be_visible()
        assert page.evaluate("Object.keys(sessionStorage)") == []
        page.reload()
        expect(page.get_by_role("button", name="Sign in at 127.0.0.1")).to_be_visible()
        only_went_there(shown, issuer)


def test_what_comes_to_nothing_is_told_in_words(chromium: Browser, tmp_path: pathlib.Path) -> None:
    """Nobody here by that name, a refusal, a sign-in that took too long, one that is over, another address."""
    with signing_in(tmp_path) as (bridge, issuer), opened(chromium, bridge.url) as shown:
        page = shown.page
        told = page.locator("#refused")
        back: list[str] = []
        page.on("request", lambda each: back.append(each.url) if f"{bridge.url}/?" in each.url else None)
        sign_in(page, "stranger")
        expect(told).to_contain_text("queuebell key create stranger --allow 'look=*'")
        assert page.url == f"{bridge.url}/"
        page.get_by_role("button", name="Sign in at 127.0.0.1").click()
        page.locator("input[value=Cancel]").click()
        expect(told).to_contain_text("The issuer did not let you in (access_denied)")
        page.get_by_role("button", name="Sign in at 127.0.0.1").click()
        page.locator("input[value=Authorize]").wait_for()
        page.goto(f"{bridge.url}/?code=of-somebody-else&state=of-somebody-else")
        expect(told).to_contain_text("was not started in this tab")
        page.goto(back[0])
        expect(told).to_contain_text("was not started in this tab")
        page.evaluate("sessionStorage.setItem('queuebell-login', JSON.stringify({state: 's', verifier: 'v', at: 0}))")
        page.goto(f"{bridge.url}/?code=late&state=s")
        expect(told).to_contain_text("more than ten minutes")
        page.goto(bridge.url.replace("127.0.0.1", "localhost"))
        page.get_by_role("button", name="Sign in at 127.0.0.1").click()
        expect(page.get_by_role("link", name=f"{bridge.url}/")).to_be_visible()
        shown.elsewhere = [each for each in shown.elsewhere if "//localhost" not in each]
        only_went_there(shown, issuer)


@contextlib.contextmanager
def bridge_here(watch: Callable[[], AccessWatch], port: int) -> Iterator[str]:
    """A bridge in a thread of this process, whose clock the test moves."""
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with watch() as access, serving_here(access=access, port=port):
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        over.set()
        thread.join()


def test_a_sign_in_ends_while_the_page_is_open(chromium: Browser, tmp_path: pathlib.Path) -> None:
    port, passed = free_port(), 0.0
    written(tmp_path / "access.json", GRANTS)
    with provider(tmp_path, f"http://127.0.0.1:{port}/", "clerk") as issuer:
        settings = IssuerSettings(
            issuer=issuer.url, audience="programs", jwks=f"{issuer.url}/.well-known/jwks.json",
            claim="preferred_username", client_id=CLIENT, redirect_uri=f"http://127.0.0.1:{port}/",
        )  # fmt: skip

        def watch() -> AccessWatch:
            return AccessWatch(tmp_path / "access.json", issuers=[settings], wall=lambda: time.time() + passed)

        with bridge_here(watch, port) as url, opened(chromium, url, "#/queue/mail/out") as shown:
            page = shown.page
            sign_in(page, "clerk")
            live(shown)
            passed = 36_100.0
            expect(page.locator("#refused")).to_contain_text("Your sign-in has ended: sign in again (the token expired")
            assert page.evaluate("sessionStorage.length") == 0
            passed = 0.0
            page.get_by_role("button", name="Sign in at 127.0.0.1").click()
            page.locator("input[value=Authorize]").click()
            live(shown)
            assert page.url == f"{url}/#/queue/mail/out"
            only_went_there(shown, issuer)
