"""A sign-in over HTTP: with a real provider, and with issuers that are down, wrong or hostile."""

from __future__ import annotations

import asyncio
import html
import json
import pathlib
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import jwt
import pytest
import pytest_asyncio
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from queuebell.bridge.access import sign_in
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.issuer import COOLDOWN_S, IssuerSettings
from queuebell.bridge.access.sign_in import nonce_of
from queuebell.bridge.http.page import login as routes
from queuebell.bridge.observe.facts import AccessRefused, Fact
from tests.support.access import written
from tests.support.background_server import BackgroundServer
from tests.support.openid_provider import CLIENT, PASSWORD, provider
from tests.support.web import JSON, Reply, Served, serving

PAGE = "http://127.0.0.1:8470/"
GRANTS = {"clerk": {"look": ["mail/out"]}}
KEY, STRANGER = (rsa.generate_private_key(65537, 2048) for _ in range(2))
_hidden = re.compile(r'<input type="hidden" name="(\w+)"(?: value="([^"]*)")?').findall


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    """A real provider with a confidential client."""
    with provider(tmp_path_factory.mktemp("people"), PAGE, "clerk", "stranger", secret="s3cret") as issuer:
        yield issuer


def settings_of(issuer: str, **more: Any) -> IssuerSettings:
    """What the configuration says of an issuer."""
    return IssuerSettings(
        **{
            "issuer": issuer, "audience": "programs", "jwks": f"{issuer}/.well-known/jwks.json",
            "claim": "preferred_username", "client_id": CLIENT, "redirect_uri": PAGE, **more,
        }
    )  # fmt: skip


@asynccontextmanager
async def asking(
    folder: pathlib.Path, settings: IssuerSettings, wall: Callable[[], float] = time.time, **more: Any
) -> AsyncIterator[Served]:
    """A bridge at which people sign in."""
    written(folder / "access.json", GRANTS)
    async with (
        AccessWatch(folder / "access.json", issuers=[settings], wall=wall) as watch,
        serving(access=watch, **more) as served,
    ):
        yield served


async def ended(served: Served, **given: Any) -> Reply:
    """End a sign-in."""
    return await served.ask("POST", "/v1/login", json.dumps(given).encode(), media=JSON)


async def begun(served: Served) -> dict[str, str]:
    """Begin a sign-in."""
    reply = await served.ask("GET", "/v1/login")
    assert reply.status == 200, reply.body
    return dict(reply.json)


async def went(address: str, name: str) -> dict[str, str]:
    """Go where a tab goes, by the provider's forms, and return what the browser is sent back with."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        async with browser.get(address) as answer:
            form, there = dict(_hidden(await answer.text())), answer.url
        async with browser.post(there, data={**form, "username": name, "password": PASSWORD}) as answer:
            form, there = dict(_hidden(await answer.text())), answer.url
        fields = {key: html.unescape(value) for key, value in form.items()}
        async with browser.post(there, data={**fields, "allow": "Authorize"}, allow_redirects=False) as answer:
            back = answer.headers["Location"]
    assert back.startswith(f"{PAGE}?")
    return {key: value for key, (value,) in parse_qs(urlsplit(back).query).items()}


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Where the client's secret is."""
    monkeypatch.setenv("PAGE_SECRET", "s3cret")
    return {"client_secret_env": "PAGE_SECRET"}


async def test_who_is_granted_nothing(real: BackgroundServer, tmp_path: pathlib.Path, secret: dict[str, str]) -> None:
    """Is told by which name the issuer knows them; a name that nobody can have is not repeated. Both are audited."""
    facts: list[Fact] = []
    async with asking(tmp_path, settings_of(real.url, **secret)) as served:
        served.bridge.observe(facts.append)
        tab = await begun(served)
        reply = await ended(served, code=(await went(tab["address"], "stranger"))["code"], verifier=tab["verifier"])
        assert (reply.status, reply.code) == (403, "forbidden")
        assert "queuebell key create stranger --allow 'look=*'" in reply.json["detail"]
        (refused,) = [fact for fact in facts if isinstance(fact, AccessRefused)]
        assert refused == AccessRefused("forbidden", "", "look", "", "127.0.0.1", f"sign-in: {reply.json['detail']}")
    async with asking(tmp_path, settings_of(real.url, claim="iss", **secret)) as served:
        tab = await begun(served)
        reply = await ended(served, code=(await went(tab["address"], "clerk"))["code"], verifier=tab["verifier"])
        assert (reply.status, reply.code) == (403, "forbidden")
        assert "by a name that is not valid here" in reply.json["detail"]
        assert real.url not in reply.json["detail"]


class Hostile:
    """An issuer that answers whatever a test has it answer."""

    def __init__(self) -> None:
        self.url = ""
        self.described: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}
        self.key: Any = KEY
        self.answer: Callable[[], web.StreamResponse] | None = None
        self.asked: list[str] = []
        self.held = asyncio.Event()
        self.held.set()
        self.came = asyncio.Semaphore(0)

    async def describe(self, request: web.Request) -> web.Response:
        """The description of itself."""
        self.asked.append(request.path)
        if self.described.get("elsewhere"):
            raise web.HTTPFound(f"{self.url}/elsewhere")
        own = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/auth",
            "token_endpoint": f"{self.url}/token",
        }
        return web.json_response({**own, **self.described})

    async def keys(self, request: web.Request) -> web.Response:
        """Its public keys."""
        return web.json_response({"keys": [{**json.loads(RSAAlgorithm.to_jwk(KEY.public_key())), "kid": "k"}]})

    async def token(self, request: web.Request) -> web.StreamResponse:
        """A token for any code."""
        self.asked.append(request.path)
        self.came.release()
        await self.held.wait()
        if self.answer is not None:
            return self.answer()
        form = await request.post()
        claims = {
            "iss": self.url, "aud": CLIENT, "preferred_username": "clerk", "exp": time.time() + 600,
            "nonce": nonce_of(str(form["code_verifier"])), **self.claims,
        }  # fmt: skip
        return web.json_response({"id_token": jwt.encode(claims, self.key, "RS256", {"kid": "k"}), "access_token": "x"})

    async def other(self, request: web.Request) -> web.Response:
        """Nobody should come here."""
        self.asked.append(request.path)
        return web.json_response({})


@pytest_asyncio.fixture
async def hostile(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hostile]:
    """One that listens; a busy machine answers late, and that is no verdict."""
    monkeypatch.setattr(sign_in, "FETCH_S", 300.0)
    monkeypatch.setattr("queuebell.bridge.access.tokens.FETCH_S", 300.0)
    issuer = Hostile()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", issuer.describe)
    app.router.add_get("/.well-known/jwks.json", issuer.keys)
    app.router.add_post("/token", issuer.token)
    app.router.add_route("*", "/{any:.*}", issuer.other)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield issuer
    issuer.held.set()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"issuer": "https://id.example"}, "its issuer is not exactly the configured one"),
        ({"token_endpoint": "http://10.0.0.1/token"}, "token_endpoint is not an https"),
        ({"elsewhere": True}, "it returned status 302"),
        ({"more": "x" * 600_000}, "not an issuer's metadata"),
    ],
)
async def test_an_issuer_that_says_not_who_it_is(
    hostile: Hostile, tmp_path: pathlib.Path, described: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody signs in there; it is asked again after half a minute, however many come, and heals then."""
    now = [time.time()]
    hostile.described = described
    async with asking(tmp_path, settings_of(hostile.url), wall=lambda: now[0]) as served:
        for _ in range(3):
            reply = await served.ask("GET", "/v1/login")
            assert (reply.status, reply.code) == (503, "issuer_unavailable")
            assert (await ended(served, code="c", verifier="v")).code == "issuer_unavailable"
        assert hostile.asked == ["/.well-known/openid-configuration"]
        assert why in caplog.text
        hostile.described = {}
        now[0] += COOLDOWN_S
        await begun(served)
        assert hostile.asked == ["/.well-known/openid-configuration"] * 2


async def test_a_flood_of_codes(hostile: Hostile, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not passed on: so many wait for the issuer at once, and one address comes so often."""
    hostile.held.clear()
    monkeypatch.setattr(sign_in, "PER_SENDER", 3)
    monkeypatch.setattr(routes, "_RATE", 0.001)
    async with asking(tmp_path, settings_of(hostile.url)) as served:
        waiting = [asyncio.create_task(ended(served, code="c", verifier="v")) for _ in range(3)]
        for _ in waiting:
            await hostile.came.acquire()
        for _ in range(routes._BURST - 3):
            reply = await ended(served, code="c", verifier="v")
            assert (reply.status, "too many concurrent sign-ins" in reply.json["detail"]) == (429, True)
        hostile.held.set()
        assert [(await each).status for each in waiting] == [200, 200, 200]
        reply = await ended(served, code="c", verifier="v")
        assert (reply.status, "from this address" in reply.json["detail"]) == (429, True)
        assert hostile.asked.count("/token") == 3


async def test_bad_input(hostile: Hostile, tmp_path: pathlib.Path) -> None:
    """Is refused before the issuer hears of it; so is a page of elsewhere."""
    async with asking(tmp_path, settings_of(hostile.url)) as served:
        bodies = [b"", b"{", b"\xff", b"[]", b"{}", b'{"code":"","verifier":"v"}', b'{"code":"c","verifier":5}']
        for body in bodies:
            reply = await served.ask("POST", "/v1/login", body, media=JSON)
            assert (reply.status, reply.code) in ((400, "bad_json"), (400, "bad_parameter")), body
        big = json.dumps({"code": "c" * 20_000, "verifier": "v"}).encode()
        assert (await served.ask("POST", "/v1/login", big, media=JSON)).code == "too_large"
        assert (await served.ask("POST", "/v1/login", b"{}", media="text/plain")).code == "unsupported_media_type"
        assert (await served.ask("GET", "/v1/login?redirect_uri=https://evil.example/")).code == "bad_parameter"
        good = b'{"code":"c","verifier":"v"}'
        foreign = await served.ask("POST", "/v1/login", good, media=JSON, Origin="http://evil.example")
        assert foreign.code == "forbidden_origin"
        assert hostile.asked == []


async def test_without_an_issuer_it_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks in any case; where no issuer is configured the package for tokens may be missing."""
    monkeypatch.setitem(sys.modules, "queuebell.bridge.access.sign_in", None)
    async with serving() as served:
        for method in ("GET", "POST"):
            reply = await served.ask(method, "/v1/login")
            assert (reply.status, reply.code) == (404, "not_found")
