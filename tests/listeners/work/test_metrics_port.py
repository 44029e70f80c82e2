"""A worker's own metrics: at a port, for all listeners of a program, and in a registry of the user's."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import ClientSession
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from bridge.contract.errors import ConfigurationError
from bridge.queues import open_store
from bridge.queues.base import NewMessage
from listeners import Message, collector
from listeners.work.metrics_port import MetricsPort
from tests.listeners.rig import listening, settled

QUEUES = ("billing/orders", "billing/refunds")


async def handle(message: Message) -> None:
    """Handle a message."""


async def get(url: str, **headers: str) -> tuple[int, str]:
    async with ClientSession() as client, client.get(url, headers=headers) as answer:
        if answer.ok:
            assert answer.headers["Content-Type"] == CONTENT_TYPE_LATEST
        return answer.status, await answer.text()


async def test_one_port_shows_all_listeners_of_a_program() -> None:
    """Each family once, with both queues; the same numbers are to be had from a registry of the user's."""
    async with open_store("memory://metrics-port") as store:
        for queue in QUEUES:
            await store.put(queue, [NewMessage(b"one"), NewMessage(b"two")])
        async with listening(store, handle, QUEUES[0]) as one, listening(store, handle, QUEUES[1]) as two:
            registry = CollectorRegistry()
            registry.register(collector(one, two))
            async with MetricsPort("127.0.0.1:0", collector(one, two)) as port:
                await asyncio.gather(settled(one, 2, queue=QUEUES[0]), settled(two, 2, queue=QUEUES[1]))
                status, text = await get(port.url)
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {
        f"queuebell_listener_{name}"
        for name in ("handled", "failures", "in_flight", "handling_seconds", "waiting_seconds", "leases_lost")
    }
    assert text.count("# TYPE queuebell_listener_handled_total") == 1
    name = f"{__name__}:handle"
    for queue in QUEUES:
        labels = {"queue": queue, "handler": name}
        assert registry.get_sample_value("queuebell_listener_handled_total", labels | {"outcome": "done"}) == 2
        (done,) = [each for each in families["queuebell_listener_handled"].samples if each.labels["queue"] == queue]
        assert (done.labels["handler"], done.value) == (name, 2)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
async def test_a_page_cannot_read_it(address: str) -> None:
    """A name that leads to this machine, and other paths and verbs, find nothing."""
    async with MetricsPort(address, collector()) as port:
        assert (await get(port.url))[0] == 200
        assert (await get(port.url, Host="evil.example"))[0] == 403
        assert (await get(port.url.replace("/metrics", "/")))[0] == 404


@pytest.mark.parametrize("address", ["9464", "127.0.0.1", ":9464", "127.0.0.1:port", "127.0.0.1:65536", "127.0.0.1:-1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """By the name of the setting, before anything is opened."""
    with pytest.raises(ConfigurationError, match="metrics: is HOST:PORT"):
        MetricsPort(address, collector())


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:9464", "example.org:9464"])
def test_an_address_that_others_reach_is_refused(address: str) -> None:
    """Unless somebody says that it may be."""
    with pytest.raises(ConfigurationError, match="insecure_public"):
        MetricsPort(address, collector())


async def test_where_others_may_read_it_any_name_does() -> None:
    """A cluster's Prometheus asks by the address of the pod."""
    async with MetricsPort("0.0.0.0:0", collector(), insecure_public=True) as port:
        assert (await get(port.url.replace("0.0.0.0", "127.0.0.1"), Host="10.1.2.3:9464"))[0] == 200


async def test_a_port_that_is_taken_is_said() -> None:
    """With what to do about it, and nothing stays open."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"metrics: cannot listen on {address}"):
            async with MetricsPort(address, collector()):
                pass
