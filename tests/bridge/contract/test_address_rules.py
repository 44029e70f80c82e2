"""The rules of addresses, each at its limits."""

from __future__ import annotations

import pytest

from bridge.contract.address import (
    each_of,
    http_addresses,
    in_one_text,
    is_host,
    is_http,
    is_loopback,
    one_text,
    port_number,
    shown,
    split_port,
)
from bridge.contract.errors import ConfigurationError

TAIL = "; an address is http://HOST:PORT or https://HOST:PORT, and no more"
NO_HTTP = "the address does not begin with http:// or https:// and a host"
NO_HOST = "the address names no host"
NO_PORT = "a port is a number from 1 to 65535"
EMPTY = "a list of addresses has an empty place"
MIXED = "all addresses of a list begin with the same scheme"


@pytest.mark.parametrize(
    ("url", "why", "given"),
    [
        ("", NO_HTTP, None),
        ("hush", NO_HTTP, None),
        ("http:/hush", NO_HTTP, None),
        ("hush x://hush", NO_HTTP, None),
        ("://hush", NO_HTTP, None),
        ("ftp://me:hush@a", NO_HTTP, "ftp://a"),
        ("http://", NO_HTTP, "http://"),
        ("http:///x", NO_HTTP, "http:///x"),
        ("http://me@", NO_HTTP, "http://"),
        ("http://a,https://b", MIXED, "http://a,https://b"),
        ("https://a,b,http://c", MIXED, "https://a,b,http://c"),
        ("http://a,nats://b", NO_HTTP, "http://a,nats://b"),
        ("hush,http://b", NO_HTTP, None),
        ("http://a,", EMPTY, "http://a,"),
        ("http://,a", EMPTY, "http://,a"),
        ("http://a,,b", EMPTY, "http://a,,b"),
        ("http://a,http://", EMPTY, "http://a,http:"),
        ("http://a, b", "a list of addresses holds a space", "http://a, b"),
        ("http://a:1,b:0", NO_PORT, "http://a:1,b:0"),
        ("http://a:1,::1", NO_HOST, "http://a:1,::1"),
        ("http://a/x,b", "the address holds a path, and no bridge is at one", "http://a/x,b"),
        ("http://a,b?k=hush", "the address holds a query or a fragment", "http://a,b"),
        ("http://a,me:hush@b", "the address holds a user or a password, and a bridge asks for none", "http://b"),
        (
            "http://me:hush@a,http://b",
            "the address holds a user or a password, and a bridge asks for none",
            "http://a,http://b",
        ),
        (
            f"http://{','.join(f'a{n}' for n in range(33))}",
            "a list has at most 32 addresses",
            f"http://{','.join(f'a{n}' for n in range(33))}",
        ),
        ("http://me:x,y@a", "the address holds a user or a password, and a bridge asks for none", "http://a"),
        ("http://me:hush@a:1", "the address holds a user or a password, and a bridge asks for none", "http://a:1"),
        ("http://@a", "the address holds a user or a password, and a bridge asks for none", "http://a"),
        ("http://a..b", NO_HOST, "http://a..b"),
        ("http://:1", NO_HOST, "http://:1"),
        ("http://a:", NO_PORT, "http://a:"),
        ("http://a:65536", NO_PORT, "http://a:65536"),
        ("http://a:0", NO_PORT, "http://a:0"),
        ("http://a/x", "the address holds a path, and no bridge is at one", "http://a/x"),
        ("http://a//", "the address holds a path, and no bridge is at one", "http://a"),
        ("http://a/x?y", "the address holds a path, and no bridge is at one", "http://a/x"),
        ("http://a/?y", "the address holds a query or a fragment", "http://a"),
        ("http://a?", "the address holds a query or a fragment", "http://a"),
        ("http://a?k=hush", "the address holds a query or a fragment", "http://a"),
        ("http://a#y\nz", "the address holds a query or a fragment", "http://a"),
    ],
)
def test_each_fault_of_an_address_has_its_words(url: str, why: str, given: str | None) -> None:
    """With the name of the setting, and what may be shown of it; what is no address at all may be a secret."""
    with pytest.raises(ConfigurationError) as refusal:
        http_addresses(url, "bridge")
    assert str(refusal.value) == f"bridge: {why}{TAIL}" + ("" if given is None else f". Given: {given}")


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://a", ("http", "a", 80, "http://a")),
        ("HtTpS://A.Example:1/", ("https", "a.example", 1, "https://A.Example:1")),
        ("https://a", ("https", "a", 443, "https://a")),
        ("http://bell_1.local.:65535", ("http", "bell_1.local.", 65535, "http://bell_1.local.:65535")),
        ("http://127.0.0.1:8470", ("http", "127.0.0.1", 8470, "http://127.0.0.1:8470")),
        ("http://glöckchen.example", ("http", "glöckchen.example", 80, "http://glöckchen.example")),
        ("http://[::1]", ("http", "::1", 80, "http://[::1]")),
        ("http://[::1]:9/", ("http", "::1", 9, "http://[::1]:9")),
        ("http://[FE80::1]:8470", ("http", "fe80::1", 8470, "http://[FE80::1]:8470")),
    ],
)
@pytest.mark.parametrize("user", ["me:hush@", "me:x,y@z@", "@"])
def test_an_address_is_taken_apart(url: str, parts: tuple[str, str, int, str], user: str) -> None:
    """User and password are refused, whatever they hold, and not shown."""
    assert http_addresses(url, "bridge") == (parts,)
    with pytest.raises(ConfigurationError, match="a bridge asks for none") as refusal:
        http_addresses(url.replace("://", f"://{user}"), "bridge")
    assert "hush" not in str(refusal.value) and "x,y" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a:1,b:2", ["http://a:1", "http://b:2"]),
        ("http://a:1,http://b:2/", ["http://a:1", "http://b:2"]),
        ("https://a,b,HTTPS://c", ["https://a", "https://b", "https://c"]),
        ("http://[::1]:1,[::2],b", ["http://[::1]:1", "http://[::2]", "http://b"]),
        ("http://b,a,B:80,b:81", ["http://b", "http://a", "http://b:81"]),
        (f"http://{','.join(f'a{n}' for n in range(32))},a0", [f"http://a{n}" for n in range(32)]),
    ],
)
def test_several_addresses_are_taken_apart(text: str, urls: list[str]) -> None:
    """In the order given and each once, whether the scheme stands once or before each; and put together again."""
    found = http_addresses(text, "bridge")
    assert [each.url for each in found] == urls
    assert http_addresses(in_one_text(found), "bridge") == found


@pytest.mark.parametrize(
    ("authority", "parts"),
    [
        ("a", ("a", None)), ("a:", ("a", "")), ("a:1", ("a", "1")), ("a:1:2", ("a", "1:2")), ("", ("", None)),
        (":1", ("", "1")), ("[::1]", ("::1", None)), ("[::1]:", ("::1", "")), ("[::1]:9", ("::1", "9")),
        ("[::1]9", ("", None)), ("[::1", ("", None)), ("[a]:1", ("", None)), ("[a]", ("", None)), ("::1", ("", ":1")),
        ("[::1]:[9]", ("::1", "[9]")),
    ],
)  # fmt: skip
def test_host_and_port_are_told_apart(authority: str, parts: tuple[str, str | None]) -> None:
    """Brackets hold an address of IPv6, and nothing else."""
    assert split_port(authority) == parts


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("1", 1), ("65535", 65535), ("00080", 80), ("0", None), ("65536", None), ("000080", None), ("", None),
        ("+80", None), ("-1", None), ("8O", None), ("\u0668\u0660", None), ("\u00b2", None), (" 80", None),
        ("80\n", None),
    ],
)  # fmt: skip
def test_a_port_is_a_number_from_1_to_65535(text: str, port: int | None) -> None:
    """In digits that every program reads."""
    assert port_number(text) == port


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


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["nats://a", "nats://b"], "nats://a,nats://b"), (("nats://a",), "nats://a"), ("nats://a", "nats://a"),
        (b"nats://a", b"nats://a"), ([], []), ((), ()), (["nats://a", 7], ["nats://a", 7]), (None, None), (7, 7),
        ({"nats://a"}, {"nats://a"}), ([7], [7]), ("", ""),
    ],
)  # fmt: skip
def test_a_list_of_addresses_is_one_text(given: object, text: object) -> None:
    """And anything else is as it was."""
    assert one_text(given) == text


@pytest.mark.parametrize(
    ("text", "each"),
    [
        ("nats://a:1,b:2", ["nats://a:1,b:2"]), ("nats://a,tls://b,c", ["nats://a", "tls://b,c"]), ("", [""]),
        ("mqtt://a,x+1.y-z://b", ["mqtt://a", "x+1.y-z://b"]), ("a,1://b", ["a,1://b"]), ("a,://b", ["a,://b"]),
    ],
)  # fmt: skip
def test_a_text_of_addresses_is_split_before_each_scheme(text: str, each: list[str]) -> None:
    """Commas within one are its own."""
    assert each_of(text) == each


@pytest.mark.parametrize(
    ("given", "is_one"),
    [
        ("http://a", True), ("HTTPS://a", True), ("http:", True), ("http", True), ("httpx://a", False),
        ("nats://http:1", False), ("", False), (None, False), (b"http://a", False), (["http://a"], False),
    ],
)  # fmt: skip
def test_what_is_meant_for_a_web_server(given: object, is_one: bool) -> None:
    """By its scheme alone: what is wrong with the rest is said by who reads it."""
    assert is_http(given) is is_one


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://me:hush@host:1/x?key=hush#hush", "http://host:1/x"), ("http://me:hu@sh@host", "http://host"),
        ("nats://me:hush@a:1,b:2?nkey=hush", "nats://a:1,b:2"), ("me:hush@host", "host"), ("", ""),
        ("http://host/\x1b[2J", "http://host/\\x1b[2J"), ("Endpoint=sb://x;Key=hush", "Endpoint=sb://x"),
        ("http://a/b/", "http://a/b"), ("http://aX", "http://aX"),
        ("http://a//", "http://a"), ("http://a;hush", "http://a"), ("a?hush", "a"),
        ("me:hu://sh@a", "a"), ("hush@a://b", "a://b"), ("://hush@a", "a"),
        ("http://a?hush#hush", "http://a"), ("http://hu?sh@a/?hush", "http://a"),
        ("http://é", "http://é"), ("a\nb", "a\\nb"), ("http://\u202ea", "http://\\u202ea"), ("http://", "http://"),
        ("/", ""), ("http://a#hu?sh", "http://a"), ("http://a/'\n", "http://a/'\\n"),
    ],
)  # fmt: skip
def test_what_may_be_shown(url: str, text: str) -> None:
    """One printable line, which ends before options and without a slash."""
    assert shown(url) == text


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("LocalHost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("[::1]", False),
        ("127.1", False),
        ("", False),
    ],
)
def test_what_can_be_reached_from_this_machine_only(host: str, here: bool) -> None:
    """No name but one is believed to be this machine, whatever it may resolve to."""
    assert is_loopback(host) is here
