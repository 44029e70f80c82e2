"""Every server that is opened refuses what web pages from elsewhere ask, and there is none that nobody looked at."""

from __future__ import annotations

import ast
import asyncio
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from queuebell.assembly import assemble
from queuebell.settings import Settings
from tests.support.command import ROOT
from tests.support.web import Client, Reply, request

OPENERS = {
    "Acceptor", "AppRunner", "Application", "BaseRunner", "HTTPServer", "Server", "ServerRunner", "SockSite",
    "TCPServer", "TCPSite", "ThreadingHTTPServer", "UnixSite", "add_insecure_port", "add_secure_port",
    "create_datagram_endpoint", "create_server", "create_unix_server", "run_app", "start_server", "start_unix_server",
}  # fmt: skip
"""What opens a server: asyncio's, aiohttp's, grpcio's and the standard library's ways, and our own."""
OPENED_IN = {
    "bridge.http.server.sockets": {"Acceptor"},
    # No page speaks gRPC: tests/bridge/keda/test_server.py asks it as one would.
    "bridge.keda.server": {"add_insecure_port"},
    # A worker loads no web server of ours: tests/listeners/work/test_metrics_port.py asks it as a page would.
    "listeners.work.metrics_port": {"AppRunner", "Application", "TCPSite"},
}
"""Where it may be done: a further web server is made of these parts, and stands in the table below."""
SERVERS = {
    "bridge.http.api.app.WebServer",
    "bridge.http.azure.server.AzureServer",
    "bridge.http.azure.relay.RelayServer",
}

SOCKETS = "queuebell.bridge.http.server.sockets"

ENOUGH = Settings(
    listen="127.0.0.1:0",
    azure_queue="127.0.0.1:0",
    # Nobody is there, and 502 tells that a request came through.
    azure_relay=("127.0.0.1:0=http://127.0.0.1:1",),
)


def trees(*words: str) -> dict[str, ast.Module]:
    texts = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text(encoding="utf-8")
        for package in ("bridge", "listeners", "queuebell")
        for file in sorted((ROOT / package).rglob("*.py"))
    }
    return {module: ast.parse(text) for module, text in texts.items() if any(word in text for word in words)}


def called(node: ast.AST) -> set[str]:
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            name = each.func
            names.add(name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else "")
    return names


def test_servers_are_opened_in_one_place() -> None:
    found = {module: called(tree) & OPENERS for module, tree in trees(*OPENERS).items()}
    assert {module: names for module, names in found.items() if names} == OPENED_IN


def test_every_class_that_listens_is_known() -> None:
    """Only the base of all servers calls `listen`, and each of its kinds is asked below."""
    kinds = {
        f"{module}.{node.name}"
        for module, tree in trees("HttpServer").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "HttpServer" in {ast.unparse(base).split(".")[-1] for base in node.bases}
    }
    assert kinds == SERVERS
    assert {module for module, tree in trees(SOCKETS).items() if "listen" in imported(tree)} == {
        "bridge.http.server.http_server",
        # For KEDA's port: no page speaks gRPC.
        "queuebell.assembly",
    }


def imported(tree: ast.Module) -> set[str]:
    """Return what a module takes from the place of the sockets, however it calls it."""
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == SOCKETS
        for alias in node.names
    }


SECRETS = (
    "secret", "ticket", "signature", "credential", "passw", "hmac", "digest", "sha256", "bearer", "authoriz",
    "AUTHORIZ", "api_key", "proof",
)  # fmt: skip
"""What a secret, or what is made of one, is called; keys of a mapping and tokens of a topic are none."""
COMPARED = {
    ("bridge.access.keys", "key.sha256 in self._keys"): "two hashes of a list that is being read",
    (
        "bridge.http.azure.exchange",
        "hashlib.md5(raw, usedforsecurity=False).digest() != given",
    ): "of a body, by its sender",
    (
        "bridge.http.server.authorizer",
        "request.headers.get(hdrs.AUTHORIZATION, '').lower().startswith('bearer ')",
    ): "the name of a scheme, which everybody knows",
    ("bridge.http.server.authorizer", "secret.startswith(PREFIX)"): "a prefix that everybody knows",
    ("bridge.keda.server", "secret.startswith(PREFIX)"): "a prefix that everybody knows",
    ("bridge.keda.server", "len(caller.authorization) == 1"): "how many there are",
    ("bridge.queues.embedded.engine", "known == digest"): "of a body, so as to know it again",
    ("bridge.service.channels.brokered", "secret.startswith(PREFIX)"): "a prefix that everybody knows",
    ("bridge.storage.claim_check", "hashlib.sha256(body).hexdigest() != claim.sha256"): "of a body that was fetched",
}
"""Comparisons whose time tells nothing of a secret, and why."""
CONSTANT = {"bridge.http.azure.auth", "bridge.service.channels.brokered"}
"""Where secrets are compared: in constant time. A key is looked up by its hash, which nobody can choose."""


def compared(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops
        ):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in {"startswith", "endswith", "find", "index", "count", "__eq__"}:
                sides = [node.func.value, *node.args]
        elif isinstance(node, ast.Match):
            sides = [node.subject]
        names = {
            each.attr if isinstance(each, ast.Attribute) else each.id
            for side in sides
            for each in ast.walk(side)
            if isinstance(each, ast.Attribute | ast.Name)
        }
        if any(word in name for name in names for word in SECRETS):
            found.add(ast.unparse(node))
    return found


def test_secrets_are_compared_in_constant_time() -> None:
    """By `hmac.compare_digest` alone; whoever compares one in another way is named here."""
    assert compared(ast.parse("f(password) != x"))
    everywhere = trees(*SECRETS)
    assert {(module, each) for module, tree in everywhere.items() for each in compared(tree)} == set(COMPARED)
    assert {module for module, tree in everywhere.items() if "compare_digest" in called(tree)} == CONSTANT


@pytest_asyncio.fixture
async def servers(tmp_path: pathlib.Path) -> AsyncIterator[list[Any]]:
    made = assemble(ENOUGH, in_memory=True)
    await made.service.start()
    opened: list[Any] = []
    try:
        for each in (made.web, *made.doors):
            await each.start()
            opened.append(each)
        yield opened
    finally:
        for each in reversed(opened):
            await each.stop()
        await made.service.stop()


async def asked(server: Any, data: bytes) -> Reply:
    """Send these bytes to a server and return its answer."""
    client = Client(*await asyncio.open_connection("127.0.0.1", server.port))
    try:
        await client.send(data)
        return await client.reply()
    finally:
        await client.close()


PATHS = {
    "WebServer": ("/livez", "/v1/sessions", "/v1/queues/a/q/peek"),
    "AzureServer": ("/devstoreaccount1", "/devstoreaccount1/orders/messages"),
    "RelayServer": ("/", "/acme/orders/messages"),
}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "queuebell.v2",
}
HEADS: list[dict[str, str]] = [{}, UPGRADE]


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_every_server_refuses_foreign_pages(servers: list[Any], method: str) -> None:
    """By a name that is not its own: 421; from another origin: 403; neither reaches anything behind it."""
    kinds = {f"{type(each).__module__}.{type(each).__name__}".removeprefix("queuebell.") for each in servers}
    assert kinds == SERVERS
    body = None if method == "GET" else b"{}"
    for server in servers:
        own = f"127.0.0.1:{server.port}"
        for path in PATHS[type(server).__name__]:
            for head in HEADS:
                for host in ("evil.example", f"acme.queue.evil.example:{server.port}"):
                    reply = await asked(server, request(method, path, body, Host=host, **head))
                    assert reply.status == 421, (server, path, head, host, reply)
                for origin in ("null", f"https://{own}x"):
                    reply = await asked(server, request(method, path, body, Host=own, Origin=origin, **head))
                    # The Azure endpoint has its own words for a preflight that says less than it should.
                    expected = (400, 403) if method == "OPTIONS" else (403,)
                    assert reply.status in expected, (server, path, head, origin, reply)


async def test_every_server_answers_to_its_own_names(servers: list[Any]) -> None:
    for server in servers:
        for host in (f"127.0.0.1:{server.port}", "localhost", "[::1]", "bell.localhost"):
            for head in ({}, {"Origin": f"http://{host}"}):
                reply = await asked(server, request("GET", "/devstoreaccount1?comp=list", Host=host, **head))
                assert reply.status not in (400, 421), (server, host, reply)
                assert reply.status != 403 or b"origin" not in reply.body


@pytest.mark.parametrize(
    ("head", "passes"),
    [({"Sec-Fetch-Site": "cross-site"}, False), ({"Referer": "https://evil.example/page"}, False), ({}, True)],
)
async def test_images_and_links_of_foreign_pages_take_no_messages(
    servers: list[Any], head: dict[str, str], passes: bool
) -> None:
    """A GET without an origin receives at an Azure endpoint: both doors refuse what a browser says of another page."""
    for server in servers[1:]:
        target = "/devstoreaccount1/orders/messages"
        reply = await asked(server, request("GET", target, Host="127.0.0.1", **head))
        came_through = b"another origin" not in reply.body and b"AuthorizationFailure" not in reply.body
        assert came_through == passes, (server, reply)
