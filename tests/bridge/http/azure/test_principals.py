"""Who may do what at the Azure endpoint of a bridge that asks for keys: every operation with every verb.

The table is written by hand, and held against the operations that there are. A shared access signature is asked beside
the account's key: it narrows what the principal may, and never widens it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import pathlib
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import (
    LinearRetry,
    QueueSasPermissions,
    QueueServiceClient,
    generate_queue_sas,
)

from queuebell.assembly import assemble
from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.keys import with_terms
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.http.azure.accounts import EMULATOR_KEY, AccountSettings
from queuebell.bridge.http.azure.exchange import Operation
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.observe.facts import AccessRefused, Administered, Fact
from queuebell.bridge.service.bridge import Bridge
from queuebell.settings import Settings
from tests.support.access import written
from tests.support.azure import ACCOUNT, KEY, Front, connection_string, fault, message, serving_azure, signed_headers
from tests.support.web import Client, Reply, Served, WebServer

GRANTED, OTHER = "granted", "other"
MATRIX: dict[Operation, tuple[Verb, str, str]] = {
    Operation.LIST_QUEUES: (Verb.LOOK, "GET", "?comp=list"),
    Operation.GET_SERVICE_PROPERTIES: (Verb.OPERATE, "GET", "?restype=service&comp=properties"),
    Operation.SET_SERVICE_PROPERTIES: (Verb.OPERATE, "PUT", "?restype=service&comp=properties"),
    Operation.GET_SERVICE_STATS: (Verb.OPERATE, "GET", "?restype=service&comp=stats"),
    Operation.CREATE_QUEUE: (Verb.MANAGE, "PUT", "/{queue}"),
    Operation.GET_QUEUE_METADATA: (Verb.LOOK, "GET", "/{queue}?comp=metadata"),
    Operation.SET_QUEUE_METADATA: (Verb.MANAGE, "PUT", "/{queue}?comp=metadata"),
    Operation.GET_QUEUE_ACL: (Verb.MANAGE, "GET", "/{queue}?comp=acl"),
    Operation.SET_QUEUE_ACL: (Verb.MANAGE, "PUT", "/{queue}?comp=acl"),
    Operation.PUT_MESSAGE: (Verb.PUT, "POST", "/{queue}/messages"),
    Operation.GET_MESSAGES: (Verb.TAKE, "GET", "/{queue}/messages"),
    Operation.PEEK_MESSAGES: (Verb.LOOK, "GET", "/{queue}/messages?peekonly=true"),
    Operation.UPDATE_MESSAGE: (Verb.TAKE, "PUT", "/{queue}/messages/1?popreceipt=x&visibilitytimeout=1"),
    Operation.DELETE_MESSAGE: (Verb.TAKE, "DELETE", "/{queue}/messages/1?popreceipt=x"),
    Operation.CLEAR_MESSAGES: (Verb.MANAGE, "DELETE", "/{queue}/messages"),
    Operation.DELETE_QUEUE: (Verb.MANAGE, "DELETE", "/{queue}"),
}
LATER = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)


def test_every_operation_has_the_verb_of_the_table() -> None:
    """An operation that is added without one, or with another one, is found here."""
    assert {operation: row[0] for operation, row in MATRIX.items()} == {each: each.verb for each in Operation}


async def test_a_list_names_only_what_may_be_seen(tmp_path: pathlib.Path) -> None:
    """The place where a page ends tells of no other queue either."""
    path = tmp_path / "access.json"
    written(path, {"p": {"look": [f"{ACCOUNT}/b-one", f"{ACCOUNT}/b-three", "elsewhere/*"]}})
    async with Bridge() as bridge, AccessWatch(path) as watch:
        async with serving_azure(bridge, access=watch, principal="p") as front:
            for name in ("a-one", "b-one", "b-three", "b-two", "c-one"):
                await bridge.store.put(f"{ACCOUNT}/{name}", [b"m"])
            first = ET.fromstring((await front.ask("GET", "?comp=list&maxresults=1")).body)
            marker = first.findtext("NextMarker")
            rest = ET.fromstring((await front.ask("GET", f"?comp=list&marker={marker}")).body)
            names = [[each.text for each in page.iter("Name")] for page in (first, rest)]
            assert (names, marker) == ([["b-one"], ["b-three"]], f"/{ACCOUNT}/b-one")


async def test_refusals_and_administration_are_told(tmp_path: pathlib.Path) -> None:
    """With the account's principal once its signature has proven it; an unproven one is nobody."""
    path = tmp_path / "access.json"
    written(path, {"p": {"manage": [f"{ACCOUNT}/{GRANTED}"]}})
    told: list[Fact] = []
    async with Bridge() as bridge, AccessWatch(path) as watch:
        bridge.observe(told.append)
        async with serving_azure(bridge, access=watch, principal="p") as front:
            await front.ask("PUT", f"/{GRANTED}")
            await front.ask("GET", f"/{GRANTED}/messages")
            await front.ask("GET", f"/{GRANTED}/messages", sign=False)
            sas = generate_queue_sas(ACCOUNT, GRANTED, KEY, QueueSasPermissions(read=True), LATER)
            await front.ask("DELETE", f"/{GRANTED}/messages?{sas}", sign=False)
    mine = f"{ACCOUNT}/{GRANTED}"
    assert [fact for fact in told if isinstance(fact, AccessRefused | Administered)] == [
        Administered("p", "manage", mine, "127.0.0.1", "CreateQueue"),
        AccessRefused("forbidden", "p", "take", mine, "127.0.0.1"),
        AccessRefused("unauthenticated", "", "", mine, "127.0.0.1"),
        AccessRefused("forbidden", "p", "manage", mine, "127.0.0.1"),
    ]


OWN_KEY = base64.b64encode(b"k" * 64).decode()
TABLE = AccountSettings(name="billing", key=OWN_KEY)


def settings_of(tmp_path: pathlib.Path, *accounts: AccountSettings, **more: Any) -> Settings:
    """A bridge with keys and the Azure endpoint."""
    file = tmp_path / "access.json"
    written(file, {"billing": {"put": ["billing/*"]}, "other": {"put": ["billing/*"]}})
    return Settings(
        data=str(tmp_path), auth=True, azure_queue="127.0.0.1:0", azure_account=accounts, access=str(file), **more
    )


@pytest.mark.parametrize(
    ("accounts", "why"),
    [
        ((TABLE,), ""),
        ((AccountSettings(name="acme", key=OWN_KEY, principal="billing"),), ""),
        ((TABLE, AccountSettings(name="billing", key=OWN_KEY, principal="billing")), ""),
        ((AccountSettings(name="acme", key=OWN_KEY),), "has no principal named 'acme': .*queuebell key create acme"),
        ((AccountSettings(name="billing", key=OWN_KEY, principal="biling"),), "has no principal named 'biling'"),
        ((AccountSettings(name="billing", key=OWN_KEY, principal=""),), "has no principal named ''"),
        ((TABLE, AccountSettings(name="billing", key=OWN_KEY, principal="other")), "keys must have the same principal"),
        ((AccountSettings(name="billing", key=EMULATOR_KEY),), "because it is public; create another: openssl rand"),
    ],
)
def test_the_principal_of_an_account(accounts: tuple[AccountSettings, ...], why: str, tmp_path: pathlib.Path) -> None:
    """It is one of the access file, by the account's name unless another is said; whatever else is refused at start."""
    settings = settings_of(tmp_path, *accounts)
    if not why:
        assemble(settings, in_memory=True)
        return
    with pytest.raises(ConfigurationError, match=why) as refused:
        assemble(settings, in_memory=True)
    assert OWN_KEY not in str(refused.value)


MIB = 1024 * 1024
MINE = f"{ACCOUNT}/*"


class Limited:
    """Both doors of a bridge, one principal behind them, and a time that the test moves."""

    def __init__(self, front: Front, served: Served, watch: AccessWatch, path: pathlib.Path, secret: str) -> None:
        self.front = front
        self.watch = watch
        self.now = 1000.0
        self.told: list[Fact] = []
        self._served = served
        self.path = path
        self._secret = secret
        watch.clock = lambda: self.now
        front.bridge.observe(self.told.append)

    def limit(self, **limits: float) -> None:
        """Write these limits into the file, and have the bridge see it."""
        given = {name: str(value) for name, value in limits.items()}
        access_file.change(self.path, lambda found: with_terms(found, "p", {}, limits=given))
        self.watch.check()

    async def put(self, queue: str = "que") -> Reply:
        """Put a message here."""
        return await self.front.ask("POST", f"/{queue}/messages", message("m"))

    async def native(self, method: str, path: str, body: bytes | None = None) -> Reply:
        """Ask at the bridge's own port."""
        return await self._served.ask(method, path, body, media="", Authorization=f"Bearer {self._secret}")

    def refusals(self) -> list[tuple[str, str, str]]:
        """What was told of refusals."""
        return [(each.principal, each.verb, each.queue) for each in self.told if isinstance(each, AccessRefused)]


@pytest_asyncio.fixture
async def limited(tmp_path: pathlib.Path) -> AsyncIterator[Limited]:
    """What `Limited` says."""
    path = tmp_path / "access.json"
    secret = written(path, {"p": {verb: [MINE] for verb in ("put", "take", "look", "manage")}})["p"]
    async with contextlib.AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(Bridge())
        watch = await stack.enter_async_context(AccessWatch(path))
        await bridge.store.create(f"{ACCOUNT}/que")
        web = WebServer(bridge, WebSettings(port=0, shutdown_timeout=0.2), access=watch)
        await stack.enter_async_context(web)
        front = await stack.enter_async_context(serving_azure(bridge, access=watch, principal="p"))
        yield Limited(front, Served(bridge, web), watch, path, secret)


async def test_grants_that_shrink(limited: Limited) -> None:
    assert (await limited.put()).status == 201
    access_file.change(limited.path, lambda found: with_terms(found, "p", {"take": [MINE]}, limits={}))
    limited.watch.check()
    assert (await limited.put()).status == 403
    assert limited.refusals() == [("p", "put", f"{ACCOUNT}/que")]


def busy(reply: Reply) -> str | None:
    """Return what a refusal of this kind tells to wait, None for another answer."""
    return reply.headers["retry-after"] if reply.status == 503 and fault(reply) == (503, "ServerBusy") else None


@contextlib.asynccontextmanager
async def connected(limited: Limited) -> AsyncIterator[Client]:
    """A connection to the endpoint."""
    client = Client(*await asyncio.open_connection("127.0.0.1", limited.front.server.port))
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("query", ["", "?timeout=30"])
async def test_bytes_that_wait(limited: Limited, query: str) -> None:
    """From before a body is read until its put is answered or given up, with those of the other door."""
    limited.limit(waiting_bytes=8 * MIB)
    mine = limited.watch.principal("p")
    assert mine is not None
    used = limited.watch.allowance(mine)
    size = len(message("m"))
    used.hold(8 * MIB - size)
    target = f"/{ACCOUNT}/que/messages{query}"
    signed = signed_headers("POST", target, message("m"), {}, limited.front.wall())
    lines = [f"POST {target} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {size}", "Expect: 100-continue"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in signed.items())]).encode() + b"\r\n\r\n"
    async with connected(limited) as first:
        await first.send(head)
        assert (await first.reply()).status == 100
        assert busy(await limited.front.ask("POST", f"/que/messages{query}", message("m"))) == "1"
        await first.send(message("m"))
        assert (await first.reply()).status == 201
    async with connected(limited) as second:
        await second.send(head)
        assert (await second.reply()).status == 100
    async with asyncio.timeout(100):
        while used.waiting_bytes > 8 * MIB - size:
            await asyncio.sleep(0.01)
    assert (await limited.front.ask("POST", f"/que/messages{query}", message("m"))).status == 201
    assert used.waiting_bytes == 8 * MIB - size
    assert limited.refusals() == [("p", "put", f"{ACCOUNT}/que")]


async def test_the_sdk_gives_up_at_429() -> None:
    """Which is why this endpoint says 503, as the service does."""
    asked = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"</QueueMessage>")
        writer.write(
            b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        text = connection_string(server.sockets[0].getsockname()[1])

        def work() -> None:
            policy: Any = LinearRetry(backoff=0, retry_total=5, random_jitter_range=0)
            with QueueServiceClient.from_connection_string(text, retry_policy=policy) as sdk:
                sdk.get_queue_client("que").send_message("m")

        with pytest.raises(HttpResponseError) as told:
            await asyncio.to_thread(work)
        assert (told.value.status_code, asked) == (429, 1)
