"""Addresses of brokers: which are accepted or refused, and what is never shown."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge.brokers import broker_maker, open_broker
from queuebell.bridge.brokers.address import Host, take_prefix, with_prefix
from queuebell.bridge.brokers.nats.access import LEARNED_MAX, Servers
from queuebell.bridge.brokers.postgres.access import PostgresAccess
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.names import DEFAULT_PREFIX
from queuebell.bridge.producer.buses import open_bus
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.queues import open_store
from queuebell.bridge.storage.tables import open_table
from tests.support.command import ROOT, environment


@pytest.mark.parametrize(
    ("url", "kind", "address"),
    [
        ("nats://h", "nats", "nats://h:4222"),
        ("nats://u:p@h:1/", "nats", "nats://h:1"),
        ("tls://[::1]:5?stream=S&durable=d&ack_wait=3", "nats", "tls://[::1]:5"),
        ("mqtt://u@h", "mqtt", "mqtt://h:1883"),
        ("mqtts://u:p@h?version=3.1.1&client_id=c&session=60", "mqtt", "mqtts://h:8883"),
    ],
)
def test_taken(url: str, kind: str, address: str) -> None:
    """Each scheme has its broker; the address shown has neither user nor option."""
    broker = open_broker(url)
    assert (broker.kind, broker.address) == (kind, address)


@pytest.mark.parametrize(
    "url",
    [
        "h:1", "redis://hush@h", "nats://", "nats://hush@", "nats://hush:hush@h:x", "nats://h:0", "nats://h/hush",
        "nats://h?hush=1", "nats://h#hush", "nats://u:hush@h?nkey=/x", "mqtt://h?version=4", "mqtt://h?session=60",
        "mqtt://h?session=-1&client_id=hush", "mqtt://h?tls_hostname=hush", "tls://h?ack_wait=hush", "nats://[hush",
    ],
)  # fmt: skip
def test_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_broker(url)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["tls://127.0.0.1", "mqtts://127.0.0.1"])
@pytest.mark.parametrize("option", ["tls_ca", "tls_cert"])
async def test_missing_files(url: str, option: str, tmp_path: Path) -> None:
    """A file for TLS that is missing or not PEM is a wrong setting."""
    broken = tmp_path / "broken"
    broken.write_text("no PEM")
    for file in (tmp_path / "missing", broken):
        broker = open_broker(f"{url}?{option}={file}")
        with pytest.raises(ConfigurationError, match="tls_ca"):
            await broker.connect()
        await broker.close()


def test_nothing_is_loaded() -> None:
    """Making a broker loads no client library; connecting does."""
    code = (
        "import sys; from queuebell.bridge.brokers import open_broker; open_broker('nats://h'); open_broker('mqtt://h');"
        "print([name for name in ('nats', 'paho', 'aiohttp') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        timeout=500,
        check=True,
    )
    assert ast.literal_eval(done.stdout) == []


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
    """HTTP has no topics; a malformed address passes unchanged."""
    assert with_prefix(url, "site7") == expected
    assert with_prefix(url, DEFAULT_PREFIX) == url
    if "site7" in expected:
        assert take_prefix(expected) == (url, "site7")


def test_a_prefix_that_is_no_token_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        with_prefix("nats://host", "a.b")


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
    """By everything that accepts such an address, with an error that repeats nothing secret."""
    opens: list[Any] = [open_broker, broker_maker, open_bus, open_store, open_table, Publisher]
    for opening in opens:
        with pytest.raises(ConfigurationError) as caught:
            opening(url)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["mqtt://a,b", "mqtts://a,mqtts://b", "redis://a,b"])
def test_lists_are_for_nats(url: str) -> None:
    with pytest.raises(ConfigurationError, match="only nats:// takes a list"):
        (open_store if url.startswith("redis") else open_broker)(url)


def test_what_is_no_server_is_left_out() -> None:
    known = Host("a", 1)
    servers = Servers([known], lambda: 0.999)
    (source,) = servers.turns()
    servers.learn([1, None, "", "b:0", "b:99999", "[::1", "u:p@b:2", "b/c", "[::1]:7", "d"], source)
    assert [server.host for server in servers.turns()] == [Host("::1", 7), Host("d", 4222), known]
    servers.learn([f"h{number}:1" for number in range(1000)], source)
    assert len(servers.turns()) == LEARNED_MAX + 1


def test_no_secret_leaves_the_address() -> None:
    """Texts for logs and comparison have neither user nor password nor options."""
    access = PostgresAccess("postgres://me:s3cret@db.example:6432/jobs?sslmode=require&search_path=bell")
    assert access.text == "postgres://db.example:6432/jobs"
    assert access.place == "postgres://db.example:6432/jobs?bell"
    assert "s3cret" not in repr(access)


def test_one_database_has_one_place() -> None:
    """Two ways of writing the same database are one; another schema is another place."""
    places = [
        PostgresAccess(url).place
        for url in (
            "postgres://a@localhost/jobs",
            "postgresql://b:x@127.0.0.1:5432/jobs",
            "postgres:///jobs?host=localhost",
        )
    ]
    assert len(set(places)) == 1
    assert PostgresAccess("postgres://localhost/jobs?search_path=x").place not in places


@pytest.mark.parametrize(
    "url",
    [
        "mysql://host/db", "postgres://host", "postgres://host/", "postgres://host/a/b", "postgres://host:port/db",
        "postgres://host/db#x", "postgres://host/db?pool=3", "postgres://host/db?command_timeout=5",
        "postgres://me:s3cret@[::1/db",
    ],
)  # fmt: skip
def test_a_wrong_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PostgresAccess(url)
    assert url.partition("://")[2] not in str(refused.value)


def test_numbers_of_the_caller() -> None:
    """An option of the caller is read, bounded, and kept from the client."""
    url = "postgres://host/db?pool_size="
    assert PostgresAccess(url + "5", options=("pool_size",)).number("pool_size", 8, most=100) == 5
    assert PostgresAccess("postgres://host/db", options=("pool_size",)).number("pool_size", 8, most=100) == 8
    for text in ("0", "101", "-1", "five", ""):
        with pytest.raises(ConfigurationError):
            PostgresAccess(url + text, options=("pool_size",)).number("pool_size", 8, most=100)


def test_several_hosts_are_one_place_in_any_order() -> None:
    """The hosts may stand before the database or in options, and have one port for all or one for each."""
    places = [
        PostgresAccess(url).place
        for url in (
            "postgres://me:x@one:5433,two/jobs",
            "postgres://two:5432,one:5433/jobs",
            "postgres:///jobs?host=one,two&port=5433,5432",
            "postgres:///jobs?host=one%2Ctwo&port=5433%2C5432",
            "postgres://one,two/jobs?port=5433,5432",
        )
    ]
    assert places == ["postgres://one:5433,two:5432/jobs?"] * 5
    assert PostgresAccess("postgres://[::1],two:1/jobs").text == "postgres://[::1]:5432,two:1/jobs"
    assert PostgresAccess("postgres:///jobs?host=one,two&port=1").place == "postgres://one:1,two:1/jobs?"
    for wrong in ("one,two:x/jobs", "one,two/jobs?port=1,2,3", "one/jobs?port=x"):
        with pytest.raises(ConfigurationError):
            PostgresAccess(f"postgres://{wrong}")
