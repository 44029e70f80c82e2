"""The hint for a missing extra fits how this copy was installed."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import ssl
from collections.abc import AsyncIterator
from importlib import metadata
from typing import Any

import pytest

from bridge.brokers import broker_maker, extras, open_broker
from bridge.brokers.address import Host, take_prefix, with_prefix
from bridge.brokers.extras import hint
from bridge.brokers.nats.access import LEARNED_MAX, Servers
from bridge.contract.errors import BusUnavailable, ChannelLost, ConfigurationError, QueuebellError
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.names import DEFAULT_PREFIX
from bridge.producer.buses import open_bus
from bridge.producer.buses.http import HttpBus
from bridge.producer.publisher import Publisher
from bridge.queues import open_store
from bridge.queues.http import HttpStore
from bridge.storage.tables import open_table
from listeners.session.channels.websocket import WebSocketChannel
from tests.support.certificates import self_signed

EDITABLE = b'{"url": "file:///srv/checkout", "dir_info": {"editable": true}}'
COPY = b'{"url": "file:///srv/checkout", "dir_info": {}}'
WHEEL = b'{"url": "https://files.example/queuebell.whl", "archive_info": {"hash": "x"}}'


@pytest.mark.parametrize(
    ("origin", "installer", "prefix", "said"),
    [
        (EDITABLE, "pip", "/srv/checkout/.venv", "pip install -e '.[sqs]' in the checkout"),
        (EDITABLE, "uv", "/srv/checkout/.venv", "uv pip install -e '.[sqs]' in the checkout"),
        (COPY, "pip", "/srv/env", "pip install '.[sqs]' in the checkout that this was installed from"),
        (COPY, "pip", "/h/.local/share/pipx/venvs/queuebell", "pipx install --force '.[sqs]' in the checkout that"),
        (COPY, "uv", "/h/.local/share/uv/tools/queuebell", "uv tool install --force '.[sqs]' in the checkout that"),
        (WHEEL, "pip", "/srv/env", "pip install 'queuebell[sqs]'"),
        (None, "uv", "/srv/env", "uv pip install 'queuebell[sqs]'"),
        (None, "", "/srv/env", "pip install 'queuebell[sqs]'"),
    ],
)
def test_the_hint_fits_the_way_of_installing(origin: bytes | None, installer: str, prefix: str, said: str) -> None:
    """A checkout is followed where it is followed already; a copy, an index and a tool's own place have their ways."""
    assert hint("sqs", origin, installer, prefix).startswith(said)
    assert "/srv/checkout" not in hint("sqs", origin, installer, prefix)


def test_this_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the package's own record says is asked; a checkout that was never installed is told to be."""
    extras.install.cache_clear()
    assert "install" in extras.install("mqtt") and "[mqtt]" in extras.install("mqtt")

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    extras.install.cache_clear()
    monkeypatch.setattr(metadata, "distribution", missing)
    assert extras.install("mqtt") == "pip install -e '.[mqtt]' in the checkout"
    extras.install.cache_clear()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://host:4222", "nats://host:4222?prefix=site7"),
        ("mqtt://me:secret@host?version=5", "mqtt://me:secret@host?version=5&prefix=site7"),
        ("postgres://me@host/jobs", "postgres://me@host/jobs?prefix=site7"),
        ("nats://host?prefix=other", "nats://host?prefix=other"),
        ("http://127.0.0.1:8470", "http://127.0.0.1:8470"),
        ("nats://[", "nats://["),
        ("", ""),
    ],
)
def test_an_address_takes_the_prefix_that_it_does_not_name(url: str, expected: str) -> None:
    """Over HTTP there are no topics; what is malformed is left for others to refuse."""
    assert with_prefix(url, "site7") == expected
    assert with_prefix(url, DEFAULT_PREFIX) == url
    if "site7" in expected:
        assert take_prefix(expected) == (url, "site7")


def test_a_prefix_that_is_no_token_is_refused() -> None:
    """It would be several levels of a topic."""
    with pytest.raises(ConfigurationError, match="prefix"):
        with_prefix("nats://host", "a.b")


A, B, C = Host("a", 1), Host("b", 2), Host("c", 4222)


def unshuffled(*hosts: Host) -> Servers:
    return Servers(hosts, lambda: 0.999)


WRONG = [
    "nats://a,tls://b", "nats://a,http://b", "nats://a,mqtt://b", "nats://a,,b", "nats://a,", "nats://,a", "nats://",
    "nats://a,nats://", "nats://a:0,b", "nats://a,b:65536", "nats://a,b:99999", "nats://a,b:x", "nats://a,b:",
    "nats://a,b:-1", "nats://u:hush@a,nats://b", "nats://a,nats://u:hush@b", "nats://a,u:hush@b",
    "nats://u:hush@a,nats://u:other@b", "nats://u:hu,sh@a,b", "nats://::1,b", "nats://[::1,b", "nats://[x]:1,b",
    "nats://a/hush,b", "nats://a,nats://b/hush", "nats://a?name=hush,nats://b", "nats://a,b#hush", "nats://a b,c",
    "nats://a,b?hush=1", "nats://a;b", "nats://@a,b",
]  # fmt: skip


@pytest.mark.parametrize("url", WRONG)
def test_what_cannot_be_one_cluster_is_refused(url: str) -> None:
    """At once by all who take such an address, as a wrong setting that repeats nothing secret."""
    opens: list[Any] = [open_broker, broker_maker, open_bus, open_store, open_table, Publisher]
    for opening in opens:
        with pytest.raises(ConfigurationError) as caught:
            opening(url)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["mqtt://a,b", "mqtts://a,mqtts://b", "redis://a,b"])
def test_lists_are_for_nats(url: str) -> None:
    """Others take one server, and say so."""
    with pytest.raises(ConfigurationError, match="only nats:// takes a list"):
        (open_store if url.startswith("redis") else open_broker)(url)


class TestTurns:
    def test_what_is_no_server_is_left_out(self) -> None:
        """And more than any cluster has, too."""
        servers = unshuffled(A)
        (a,) = servers.turns()
        servers.learn([1, None, "", "b:0", "b:99999", "[::1", "u:p@b:2", "b/c", "[::1]:7", "d"], a)
        assert [server.host for server in servers.turns()] == [Host("::1", 7), Host("d", 4222), A]
        servers.learn([f"h{number}:1" for number in range(1000)], a)
        assert len(servers.turns()) == LEARNED_MAX + 1


@contextlib.asynccontextmanager
async def standing(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Serve nothing on a port, behind TLS or not."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


async def told(url: str) -> set[str]:
    """What the queue store, the way of triggers and the way of wakes say of an address, past what is their own."""
    store, bus, channel = HttpStore(url), HttpBus(url), WebSocketChannel(url)
    said: set[str] = set()
    try:
        for call in (store.depth("a/q"), bus.publish([CloudQueueWorkDetected("a", "q")]), channel.connect()):
            with pytest.raises(QueuebellError) as caught:
                await call
            lead = {BusUnavailable: f"no bridge answers at {url}: ", ChannelLost: "no session: "}
            said.add(
                str(caught.value).removeprefix(
                    lead.get(type(caught.value), f"{url}: the queue service cannot be reached: ")
                )
            )
    finally:
        for each in (store, bus, channel):
            await each.close()
    return said


async def test_a_certificate_that_is_not_trusted_is_no_missing_permission(tmp_path: pathlib.Path) -> None:
    """OpenSSL's number for it is 1, which the system reads as "Operation not permitted"."""
    async with standing(self_signed(tmp_path)[0]) as port:
        assert await told(f"https://127.0.0.1:{port}") == {
            "its certificate is rejected: self-signed certificate (set SSL_CERT_FILE to a certificate to trust)"
        }
