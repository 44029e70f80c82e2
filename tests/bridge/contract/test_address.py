"""Addresses of a bridge: malformed ones end every command and object at once, and none shows a secret."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge import Bridge
from bridge.brokers import SCHEMES as BROKERS
from bridge.brokers import open_broker
from bridge.contract.address import sender_of, shown
from bridge.contract.errors import ConfigurationError
from bridge.http.webhooks.addresses import check_url
from bridge.observe.logs import FactLog
from bridge.producer.buses import SCHEMES as BUSES
from bridge.producer.buses import open_bus
from bridge.producer.buses.http import HttpBus
from bridge.producer.publisher import BlockingPublisher, Publisher
from bridge.queues import STORES, open_store
from bridge.queues.http import HttpStore
from bridge.storage.blobs import BLOBS, open_blobs
from bridge.storage.tables import TABLES, open_table
from bridge.triggers.attachment import Attachments
from listeners import Listener
from listeners.session.channels.websocket import WebSocketChannel
from queuebell.command.client import BridgeClient
from queuebell.command.main import main
from queuebell.settings import load
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
    """By each who takes one, as a setting that is wrong: asked for ever, nobody would be there."""
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
    assert main([*words, *more]) == 78
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{key}: " in said and "http://HOST:PORT" in said


def test_a_webhook_has_one_url() -> None:
    """Siblings of an address of a bridge."""
    for url in ("https://a.example,https://b.example", "https://a.example:99999", "https://a.example,b.example/x"):
        with pytest.raises(ValueError):
            check_url(url, allow_private=True)


def test_serve_refuses_the_address_that_its_file_gives_the_commands() -> None:
    """One file is read by all; whoever starts first hears of it."""
    with pytest.raises(ConfigurationError, match="bridge"):
        load(None, environment={"QUEUEBELL_BRIDGE": "http://a/x"})


SECRET = "hush"
USERINFO = [
    f"me:{SECRET}",
    f":{SECRET}",
    f"me:x@{SECRET}",
    f"me:{SECRET}/x",
    f"me:{SECRET}?x",
    f"me:{SECRET}#x",
    SECRET,
]
PLACES = ["host", "host:1", "host:99999", "host:x", "[::1]:1", "host/db", "host/a/b", "host?x=1", "a:1,b:2", ""]
OPENS: dict[str, tuple[Callable[[str], Any], Any]] = {
    "store": (open_store, STORES),
    "bus": (open_bus, BUSES),
    "broker": (open_broker, BROKERS),
    "table": (open_table, TABLES),
    "blobs": (open_blobs, BLOBS),
    "bridge": (BridgeClient, ["http", "https"]),
    "channel": (WebSocketChannel, ["http", "https"]),
}


@pytest.mark.parametrize(("what", "scheme"), [(what, scheme) for what, (_, all_) in OPENS.items() for scheme in all_])
def test_no_address_of_any_kind_tells_its_secret(
    what: str, scheme: str, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as text, not in `repr`, not in what refuses it, not in the log: a walk over all schemes that there are."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    for userinfo in USERINFO:
        for place in PLACES:
            url = f"{scheme}://{userinfo}@{place}"
            told.append(shown(url))
            try:
                made = OPENS[what][0](url)
            except ConfigurationError as error:
                told.append(f"{error} {error!r}")
                continue
            names = [str(made), repr(made)]
            for name in ("address", "url", "_text", "_base", "_where", "_address"):
                with contextlib.suppress(AttributeError):
                    names.append(f"{getattr(made, name)} {getattr(made, name)!r}")
            told += names
    if scheme not in {"memory", "sqlite", "file"}:  # what follows these is a name or a path
        assert not [text for text in told if SECRET in text or not text.isprintable()]
        assert SECRET not in caplog.text


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
