"""Where a relay passes requests on to, and which headers go along."""

from __future__ import annotations

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.http.azure.relay.endpoint import Endpoint, read_endpoint
from bridge.http.azure.relay.headers import passed_on


@pytest.mark.parametrize(
    ("url", "endpoint", "host"),
    [
        (
            "https://acme.queue.core.windows.net/",
            Endpoint("https", "acme.queue.core.windows.net", "acme"),
            "acme.queue.localhost",
        ),
        (
            "https://ACME.z12.queue.storage.azure.net",
            Endpoint("https", "acme.z12.queue.storage.azure.net", "acme"),
            "acme.queue.localhost",
        ),
        ("http://acme.queue.localhost:10001", Endpoint("http", "acme.queue.localhost:10001", "acme"), None),
        ("http://acme-secondary.queue.localhost", Endpoint("http", "acme-secondary.queue.localhost", "acme"), None),
        ("http://127.0.0.1:10001", Endpoint("http", "127.0.0.1:10001", None), "localhost"),
        ("http://[::1]:80", Endpoint("http", "[::1]", None), "localhost"),
        ("https://azurite:443", Endpoint("https", "azurite", None), "localhost"),
        ("http://queue.example", Endpoint("http", "queue.example", None), "localhost"),
    ],
)
def test_endpoints(url: str, endpoint: Endpoint, host: str | None) -> None:
    """The account stands in the host name of a real account, else in the path."""
    assert read_endpoint(url) == endpoint
    assert host in (None, endpoint.host)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "acme.queue.core.windows.net",
        "ftp://acme.queue.core.windows.net",
        "http://127.0.0.1:10001/devstoreaccount1",
        "http://127.0.0.1:10001?sig=x",
        "http://user@127.0.0.1",
        "http://127.0.0.1:x",
        "http://a b",
        "http://[::1",
        "http://",
    ],
)
def test_what_is_no_endpoint(url: str) -> None:
    """The refusal names the key and says why a path cannot be."""
    with pytest.raises(ConfigurationError, match="azure_relay"):
        read_endpoint(url)


def test_headers_of_one_hop_stay() -> None:
    """Those that RFC 9110 names and those that Connection names; the rest goes on in its order, letter by letter."""
    given = [
        (b"HOST", b"a"),
        (b"x-ms-Meta-B", b"2"),
        (b"Connection", b"keep-alive, X-Hop,"),
        (b"Keep-Alive", b"timeout=5"),
        (b"x-hop", b"1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"TE", b"trailers"),
        (b"Upgrade", b"h2c"),
        (b"Expect", b"100-continue"),
        (b"Proxy-Authorization", b"x"),
        (b"Authorization", b"SharedKey a:b"),
        (b"x-ms-meta-b", b"3"),
    ]
    kept = [(b"HOST", b"a"), (b"x-ms-Meta-B", b"2"), (b"Authorization", b"SharedKey a:b"), (b"x-ms-meta-b", b"3")]
    assert passed_on(given) == kept
    assert passed_on(given, without=(b"host",)) == kept[1:]


def test_connection_takes_neither_length_nor_signature_away() -> None:
    """Without its length the rest of a body would be read as a request of its own."""
    given = [(b"Connection", b"Content-Length, Authorization, Host, x"), (b"Content-Length", b"3"), (b"X", b"1")]
    assert passed_on([*given, (b"Authorization", b"a"), (b"Host", b"b")]) == [
        (b"Content-Length", b"3"),
        (b"Authorization", b"a"),
        (b"Host", b"b"),
    ]
