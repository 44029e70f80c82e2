"""Several servers of a NATS cluster: how they are written, what is refused, and whose turn it is."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.brokers import broker_maker, open_broker
from bridge.brokers.address import Address, Host
from bridge.brokers.nats.servers import LEARNED_MAX, Node, Servers
from bridge.brokers.prefix import take_prefix, with_prefix
from bridge.contract.errors import ConfigurationError
from bridge.producer.buses import open_bus
from bridge.producer.publisher import Publisher
from bridge.queues import open_store
from bridge.queues.jetstream.store import JetStreamStore
from bridge.storage.tables import open_table
from listeners import Listener
from queuebell.settings import load

QUEUE = "billing/orders"
A, B, C = Host("a", 1), Host("b", 2), Host("c", 4222)


def read(url: str) -> Address:
    return Address(url, schemes=("nats", "tls"), options=("inbox", "name"), several=True)


def unshuffled(*hosts: Host) -> Servers:
    return Servers(hosts, lambda: 0.999)


@pytest.mark.parametrize(
    "url",
    [
        "nats://a:1,b:2,c",
        "nats://a:1,nats://b:2,nats://c",
        "nats://a:1,b:2,nats://c",
        "NATS://A:1,B:2,C:4222/",
        "nats://a:1/,nats://b:2/,nats://c/",
        "nats://a:1,b:2,a:1,c",
    ],
)
def test_a_list_is_written_in_two_ways(url: str) -> None:
    """As hosts or as addresses; one that is named twice counts once."""
    assert read(url).hosts == (A, B, C)
    assert read(url).text == "nats://a:1,b:2,c:4222"


@pytest.mark.parametrize(
    "url", ["nats://me:se%2Ccret@a:1,b:2?name=x", "nats://me:se%2Ccret@a:1,nats://me:se%2Ccret@b:2?name=x"]
)
def test_user_password_and_options_are_of_all(url: str) -> None:
    """They stand once, or in each address the same; a comma within them is escaped."""
    address = read(url)
    assert (address.user, address.password, address.options) == ("me", "se,cret", {"name": "x"})
    assert address.hosts == (A, B) and address.text == "nats://a:1,b:2"


def test_addresses_of_ipv6_have_brackets() -> None:
    """In front, in between, and with and without a port."""
    address = read("tls://[::1],b:2,[fe80::1]:9")
    assert address.hosts == (Host("::1", 4222), B, Host("fe80::1", 9))
    assert address.text == "tls://[::1]:4222,b:2,[fe80::1]:9"


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
    with pytest.raises(ConfigurationError, match="list of them is for nats"):
        (open_store if url.startswith("redis") else open_broker)(url)


def test_a_python_list_is_a_list() -> None:
    """For the store, the bus and the publisher."""
    given = ["nats://a:1", "nats://b:2"]
    assert str(open_store(given)) == "nats://a:1,b:2"
    assert Publisher(given)._bus._make()._complaints._address == "nats://a:1,b:2"  # type: ignore[attr-defined]
    assert Listener(given, QUEUE, print, bridge=given)._bridge_given == "nats://a:1,nats://b:2"


def test_the_prefix_is_an_option_of_the_whole_list() -> None:
    """However the list is written."""
    for url in ("nats://a:1,[::1]:2", "nats://a:1,nats://[::1]:2"):
        assert with_prefix(url, "site7") == f"{url}?prefix=site7"
        assert take_prefix(f"{url}?name=x&prefix=site7") == (f"{url}?name=x", "site7")


def test_in_the_environment_a_comma_divides_hosts_or_buses() -> None:
    """What has no scheme is another host of the bus before it; a bus has a scheme, or is our own server."""
    for text, buses in (
        ("nats://a:1,b:2", ("nats://a:1,b:2",)),
        ("nats://a:1, b:2 ,nats://c", ("nats://a:1,b:2", "nats://c")),
        ("nats://a:1,nats://b:2", ("nats://a:1", "nats://b:2")),
        ("nats://a,embedded:4222", ("nats://a", "embedded:4222")),
        ("embedded,nats://a,b", ("embedded", "nats://a,b")),
        ("", ()),
    ):
        assert load(None, environment={"QUEUEBELL_NATS": text}).nats == buses
    assert load(None, environment={}, options={"nats": ["nats://a,nats://b"]}).nats == ("nats://a,nats://b",)


def test_a_queue_is_recognised_in_whatever_order_its_servers_stand() -> None:
    """One address keeps the fingerprint that it has always had; another set of servers has another."""
    one = [JetStreamStore(url).fingerprint(QUEUE) for url in ("nats://a:1,b:2", "nats://b:2,nats://a:1")]
    assert one[0] == one[1] != JetStreamStore("nats://a:1").fingerprint(QUEUE)
    assert JetStreamStore("nats://127.0.0.1:4222").fingerprint(QUEUE) == "3e8636d748e0fc88cc98757cbc2ccc0a"


def test_who_lists_three_servers_gets_three_replicas() -> None:
    """A queue on one of them would go with it; fewer than three have no majority without one."""
    for url, replicas in (("nats://a", 1), ("nats://a,b", 1), ("nats://a,b,c", 3), ("nats://a,b,c?replicas=1", 1)):
        assert JetStreamStore(url)._replicas == replicas
        assert open_table(url)._replicas == replicas  # type: ignore[attr-defined]


class TestTurns:
    def test_whoever_was_tried_is_tried_last(self) -> None:
        """With whatever success: a connection that is made anew is made to another server."""
        servers = unshuffled(A, B, C)
        for host in (A, B, C, A):
            first = servers.turns()[0]
            assert first.host == host
            servers.tried(first)

    def test_the_first_turn_is_drawn(self) -> None:
        """A fleet does not begin with one server."""
        firsts = {Servers((A, B, C), lambda at=at: at / 10).turns()[0].host for at in range(10)}  # type: ignore[misc]
        assert firsts == {A, B, C}

    def test_what_a_server_tells_joins_and_what_it_tells_no_more_leaves(self) -> None:
        """Those of the address stay whatever is told; the one in use keeps the last turn."""
        servers = unshuffled(A)
        (a,) = servers.turns()
        servers.tried(a)
        servers.learn(["a:1", "b:2", "c:4222"], a)
        assert [server.host for server in servers.turns()] == [B, C, A]
        servers.learn(["c:4222"], a)
        assert [server.host for server in servers.turns()] == [C, A]
        for nothing in (None, [], "c:4222", {"c": 1}):
            servers.learn(nothing, a)
        assert [server.host for server in servers.turns()] == [C, A]

    def test_what_is_no_server_is_left_out(self) -> None:
        """And more than any cluster has, too."""
        servers = unshuffled(A)
        (a,) = servers.turns()
        servers.learn([1, None, "", "b:0", "b:99999", "[::1", "u:p@b:2", "b/c", "[::1]:7", "d"], a)
        assert [server.host for server in servers.turns()] == [Host("::1", 7), Host("d", 4222), A]
        servers.learn([f"h{number}:1" for number in range(1000)], a)
        assert len(servers.turns()) == LEARNED_MAX + 1

    def test_the_certificate_of_a_server_told_by_its_address_bears_the_tellers_name(self) -> None:
        """One that is told by its name bears its own."""
        servers = unshuffled(A)
        servers.learn(["10.0.0.1:1", "b:2", "[::1]:3"], servers.turns()[0])
        names = {server.host.name: server.name for server in servers.turns()}
        assert names == {"a": "a", "10.0.0.1": "a", "b": "b", "::1": "a"}
        assert [server.learned for server in servers.turns()].count(True) == 3

    def test_one_that_has_left_has_no_turn(self) -> None:
        """Although it is heard of afterwards."""
        servers = unshuffled(A)
        servers.tried(Node(B, "b", learned=True))
        assert [server.host for server in servers.turns()] == [A]


def test_connections_share_what_they_know() -> None:
    """Of one maker; another one begins anew."""
    make = broker_maker("nats://a,b")
    assert make().servers is make().servers  # type: ignore[attr-defined]
    assert make().servers is not broker_maker("nats://a,b")().servers  # type: ignore[attr-defined]
