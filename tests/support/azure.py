"""The Azure endpoint on a free port, and a client of its own that signs requests without any SDK."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import hashlib
import hmac
import ssl
import time
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from aiohttp import web

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.http.azure.accounts import read_accounts
from queuebell.bridge.http.azure.auth import AccountPrincipals, SignatureAuthorizer
from queuebell.bridge.http.azure.front import AzureFront
from queuebell.bridge.http.azure.records import JsonRecords, NoRecords
from queuebell.bridge.http.azure.server import AzureServer, front_settings
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.service.bridge import Bridge
from tests.support.http_proxy import Faults, HttpProxy
from tests.support.web import Client, Reply

ACCOUNT = "devstoreaccount1"
# The emulator's, which everybody knows.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2026-04-06"
SIGNED_HEADERS = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)
"""The lines of the long form after the method, in their order."""


def connection_string(port: int, scheme: str = "http") -> str:
    """What ``UseDevelopmentStorage=true`` stands for, at another port."""
    return (
        f"DefaultEndpointsProtocol={scheme};AccountName={ACCOUNT};AccountKey={KEY};"
        f"QueueEndpoint={scheme}://127.0.0.1:{port}/{ACCOUNT};"
    )


def signed_headers(method: str, target: str, body: bytes, headers: dict[str, str], now: float) -> dict[str, str]:
    """Return the headers of a request with a Shared Key signature, made by the documents alone."""
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    full = {"x-ms-date": f"{moment:%a, %d %b %Y %H:%M:%S} GMT", "x-ms-version": VERSION, **headers}
    lower = {name.lower(): value for name, value in full.items()}
    lower["content-length"] = str(len(body)) if body else ""
    ours = "".join(f"{name}:{lower[name]}\n" for name in sorted(lower) if name.startswith("x-ms-"))
    parts = urlsplit(target)
    query = "".join(f"\n{name.lower()}:{value}" for name, value in sorted(parse_qsl(parts.query, True)))
    text = f"{method}\n" + "".join(lower.get(name, "") + "\n" for name in SIGNED_HEADERS)
    text += f"{ours}/{ACCOUNT}{parts.path}{query}"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    return {**full, "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"}


class Message(NamedTuple):
    """A message of an answer; what the answer did not say is empty."""

    id: str
    text: str
    receipt: str
    count: int
    fields: dict[str, str]


class Front:
    """A served Azure endpoint; ``ask`` signs, unless it is told not to."""

    def __init__(self, bridge: Bridge, door: AzureFront, server: AzureServer, wall: Callable[[], float]) -> None:
        self.bridge = bridge
        self.door = door
        self.server = server
        self.wall = wall

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        account: str = ACCOUNT,
        host: str = "127.0.0.1",
        sign: bool = True,
        **more: str,
    ) -> Reply:
        """Send one request to a path of an account (empty: the path is whole) and return the answer."""
        target = f"/{account}{path}" if account else path
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        if sign:
            headers = signed_headers(method, target, body, headers, self.wall())
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}:{self.server.port}"]
        if body or method in ("PUT", "POST"):
            lines.append(f"Content-Length: {len(body)}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body, head_only=method == "HEAD")

    async def send(self, data: bytes, *, head_only: bool = False, tls: ssl.SSLContext | None = None) -> Reply:
        """Send bytes over a connection of its own and return the answer."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port, ssl=tls))
        try:
            await client.send(data)
            return await client.reply(head_only=head_only)
        finally:
            await client.close()

    async def put(self, queue: str, text: str, query: str = "") -> Message:
        """Put one message that must be taken."""
        reply = await self.ask("POST", f"/{queue}/messages{query}", message(text))
        assert reply.status == 201, reply
        return messages(reply)[0]

    async def get(self, queue: str, query: str = "") -> list[Message]:
        """Receive."""
        reply = await self.ask("GET", f"/{queue}/messages{query}")
        assert reply.status == 200, reply
        return messages(reply)

    async def delete(self, queue: str, held: Message) -> Reply:
        """Delete a message under the receipt it came with."""
        return await self.ask("DELETE", f"/{queue}/messages/{held.id}?popreceipt={quote(held.receipt, safe='')}")


def message(text: str) -> bytes:
    """The body of a put."""
    root = ET.Element("QueueMessage")
    ET.SubElement(root, "MessageText").text = text
    return ET.tostring(root, encoding="utf-8")


def messages(reply: Reply) -> list[Message]:
    """Read a list of messages, and check that the answer is one."""
    assert reply.headers["content-type"] == "application/xml"
    root = ET.fromstring(reply.body)
    assert root.tag == "QueueMessagesList"
    found = []
    for element in root:
        assert element.tag == "QueueMessage"
        fields = {child.tag: child.text or "" for child in element}
        count = int(fields.get("DequeueCount", 0))
        found.append(
            Message(fields["MessageId"], fields.get("MessageText", ""), fields.get("PopReceipt", ""), count, fields)
        )
    return found


def fault(reply: Reply) -> tuple[int, str]:
    """Return status and code of a refusal, after checking that header and body say the same."""
    root = ET.fromstring(reply.body)
    assert root.tag == "Error"
    assert root.findtext("Message")
    code = root.findtext("Code")
    assert code == reply.headers["x-ms-error-code"]
    return reply.status, str(code)


@contextlib.asynccontextmanager
async def serving_azure(
    bridge: Bridge | None = None,
    *,
    wall: Callable[[], float] = time.time,
    tls: ssl.SSLContext | None = None,
    access: AccessWatch | None = None,
    principal: str = ACCOUNT,
) -> AsyncIterator[Front]:
    """Serve a bridge (by default one in memory) through the Azure endpoint on a free port.

    With ``access`` the account may do what that list's ``principal`` may.
    """
    async with contextlib.AsyncExitStack() as stack:
        if bridge is None:
            bridge = await stack.enter_async_context(Bridge())
        records = NoRecords() if bridge.own is None else JsonRecords(None, bridge.store.number)
        front = AzureFront(
            bridge.store,
            SignatureAuthorizer(read_accounts((), {}), records.policies),
            records,
            wall=wall,
            draining=lambda: bridge.draining,
            gate=bridge.gate,
            principals=None if access is None else AccountPrincipals(access, {ACCOUNT: principal}, bridge.emit),
            history=bridge.history,
        )
        settings = front_settings(WebSettings(shutdown_timeout=0.2), "127.0.0.1", 0)
        server = await stack.enter_async_context(AzureServer(front, settings, boot=bridge.named_boot, tls=tls))
        yield Front(bridge, front, server, wall)


@contextlib.asynccontextmanager
async def failing(front: Front, faults: Faults) -> AsyncIterator[int]:
    """Give a port that leads to a front door, where requests that settle one message fail as ``faults`` plans."""

    def settles(asked: web.BaseRequest) -> bool:
        return asked.method in ("DELETE", "PUT") and "/messages/" in asked.path

    async with HttpProxy(f"http://127.0.0.1:{front.server.port}", faults, settles) as proxy:
        yield proxy.port
