"""Addresses of a bridge: malformed ones end every command and object at once, and none shows a secret."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge import Bridge
from queuebell.bridge.contract.address import (
    http_addresses,
    is_host,
    sender_of,
)
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.observe.logs import FactLog
from queuebell.bridge.producer.buses import open_bus
from queuebell.bridge.producer.buses.http import HttpBus
from queuebell.bridge.producer.publisher import BlockingPublisher, Publisher
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.triggers.attachment import Attachments
from queuebell.command.client import BridgeClient
from queuebell.command.main import main
from queuebell.listeners import Listener
from queuebell.listeners.session.websocket import WebSocketChannel
from tests.support.processes import until

QUEUE = "billing/orders"
MALFORMED = [
    "http://a:1,https://b:2", "http://a:1,,b:2", "https://a,", "http://a,b:x", "http://a:99999", "http://a:0", "http://a:x",
    "http://a:", "http://a:+80", "http://a/bridge", "http://a:1/v1/", "http://a//", "http://a?x=1", "http://a/?",
    "http://a#x", "http://a#", "http://", "http:///x", "http://a b", "http://a\\b", "http://[::1", "http://[x]:1",
    "http://::1:80", "http://a..b", "http://a\n", "http://a:1:2", "http:a", "http://,a", f"http://{'a' * 64}",
]  # fmt: skip


@pytest.mark.parametrize("url", MALFORMED)
@pytest.mark.parametrize(
    "opened",
    [
        HttpStore,
        open_store,
        HttpBus,
        open_bus,
        Publisher,
        BlockingPublisher,
        WebSocketChannel,
        BridgeClient,
        lambda url: Listener("memory:x", QUEUE, print, bridge=url),
        lambda url: Listener(url, QUEUE, print),
    ],
    ids=["HttpStore", "open_store", "HttpBus", "open_bus", "Publisher", "Blocking", "channel", "client", "L", "Lstore"],
)
def test_a_malformed_address_is_refused_when_it_is_given(opened: Callable[[str], Any], url: str) -> None:
    with pytest.raises(ConfigurationError):
        opened(url)


@pytest.mark.parametrize("url", ["http://a:1,https://b:2", "http://a:99999", "http://a:1/x", "http://a:1?x=1"])
@pytest.mark.parametrize("by", ["option", "environment", "file"])
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("bridge", ["status"]),
        ("bridge", ["check"]),
        ("bridge", ["explain", QUEUE]),
        ("bridge", ["publish", QUEUE]),
        ("bridge", ["queue", "forget", QUEUE]),
        ("bridge", ["queue", "put", QUEUE, "x", "--store", "memory:x"]),
        ("bridge", ["listen", "memory:x", QUEUE, "--exec", "true"]),
        ("store", ["queue", "put", QUEUE, "x"]),
        ("store", ["queue", "depth", QUEUE]),
        ("store", ["queue", "replay", "billing/orders-poison"]),
    ],
)
def test_a_malformed_address_ends_each_command(
    key: str,
    words: list[str],
    by: str,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With 78 and one line that says which setting and what would be right, wherever the setting stands."""
    more = []
    if by == "option":
        more = [f"--{key}", url]
    elif by == "environment":
        monkeypatch.setenv(f"QUEUEBELL_{key.upper()}", url)
    else:
        file = tmp_path / "queuebell.toml"
        file.write_text(f'{key} = "{url}"\n')
        more = ["--config", str(file)]
    # A command that runs long sets up its log before it reads its settings.
    monkeypatch.setattr(logging.getLogger(), "handlers", [*logging.getLogger().handlers])
    assert main([*words, *more]) == 78
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{key}: " in said and "http://HOST:PORT" in said


async def test_no_bus_that_is_away_tells_its_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Not in `/readyz`, not in the list of listeners, not in the log: by each kind of bus that a bridge can have."""
    caplog.set_level(logging.DEBUG)
    at = "me:hush@127.0.0.1:1"
    async with (
        Bridge() as bridge,
        Attachments(
            bridge,
            nats=[f"nats://{at},127.0.0.1:2", f"tls://{at}"],
            mqtt=[f"mqtt://{at}", f"mqtts://{at}"],
            postgres=[f"postgres://{at}/jobs?search_path=hush"],
        ) as buses,
    ):
        bridge.observe(FactLog())
        names = [*buses.buses, *buses.databases]

        def told() -> dict[str, Any]:
            return bridge.readiness().checks

        await until(lambda: all("not connected yet" not in told()[name].detail for name in names), "each was tried")
        said = f"{bridge.readiness()} {buses.subjects()} {bridge.listeners()}"
    assert "127.0.0.1:1" in said
    assert "hush" not in said + caplog.text


@pytest.mark.parametrize(
    ("address", "sender"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("nonsense", "nonsense"),
    ],
)
def test_who_counts_as_one_sender(address: str, sender: str) -> None:
    """An IPv4 address, and an IPv6 network: everybody has all addresses of theirs."""
    assert sender_of(address) == sender


TAIL = "; an address is http://HOST:PORT or https://HOST:PORT and nothing else"
NO_HTTP = "the address must begin with http:// or https:// and a host"
NO_HOST = "the address has no host"
NO_PORT = "a port must be a number from 1 to 65535"
EMPTY = "a list of addresses has an empty entry"
MIXED = "all addresses of a list must have the same scheme"


@pytest.mark.parametrize(
    ("url", "why", "given"),
    [
        ("hush", NO_HTTP, None),
        ("hush x://hush", NO_HTTP, None),
        ("ftp://me:hush@a", NO_HTTP, "ftp://a"),
        ("http://", NO_HTTP, "http://"),
        ("http://me@", NO_HTTP, "http://"),
        ("http://a,https://b", MIXED, "http://a,https://b"),
        ("http://a,nats://b", NO_HTTP, "http://a,nats://b"),
        ("hush,http://b", NO_HTTP, None),
        ("http://a,", EMPTY, "http://a,"),
        ("http://a,,b", EMPTY, "http://a,,b"),
        ("http://a,http://", EMPTY, "http://a,http:"),
        ("http://a, b", "a list of addresses contains a space", "http://a, b"),
        ("http://a:1,::1", NO_HOST, "http://a:1,::1"),
        ("http://a/x,b", "the address contains a path, which bridges do not have", "http://a/x,b"),
        ("http://a,b?k=hush", "the address contains a query or a fragment", "http://a,b"),
        ("http://a,me:hush@b", "the address contains a user or a password, which bridges do not use", "http://b"),
        (
            "http://me:hush@a,http://b",
            "the address contains a user or a password, which bridges do not use",
            "http://a,http://b",
        ),
        (
            f"http://{','.join(f'a{n}' for n in range(33))}",
            "a list may have at most 32 addresses",
            f"http://{','.join(f'a{n}' for n in range(33))}",
        ),
        ("http://me:x,y@a", "the address contains a user or a password, which bridges do not use", "http://a"),
        ("http://me:hush@a:1", "the address contains a user or a password, which bridges do not use", "http://a:1"),
        ("http://@a", "the address contains a user or a password, which bridges do not use", "http://a"),
        ("http://a..b", NO_HOST, "http://a..b"),
        ("http://:1", NO_HOST, "http://:1"),
        ("http://a:", NO_PORT, "http://a:"),
        ("http://a/x", "the address contains a path, which bridges do not have", "http://a/x"),
        ("http://a?k=hush", "the address contains a query or a fragment", "http://a"),
        ("http://a#y\nz", "the address contains a query or a fragment", "http://a"),
    ],
)
def test_each_fault_of_an_address_has_its_words(url: str, why: str, given: str | None) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        http_addresses(url, "bridge")
    assert str(refusal.value) == f"bridge: {why}{TAIL}" + ("" if given is None else f". Given: {given}")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("a", True), ("a.b", True), ("a.b.", True), ("bell_1-x", True), ("glöckchen.example", True),
        ("127.0.0.1", True), ("a" * 63, True), (".".join(["a" * 62] * 4) + ".a", True), ("::1", True),
        ("fe80::1", True), ("::ffff:1.2.3.4", True),
        ("", False), (".", False), ("a..b", False), ("a...", False), (".a", False),
        ("a" * 64, False), (".".join(["a" * 62] * 4) + ".aa", False), ("a b", False), ("a\n", False), ("a%", False),
        ("1::2::3", False), ("::g", False), ("a:b", False), ("[::1]", False),
    ],
)  # fmt: skip
def test_what_may_be_a_host(name: str, is_one: bool) -> None:
    """A name of labels of 63 characters at most and 253 in all, or an address."""
    assert is_host(name) is is_one
