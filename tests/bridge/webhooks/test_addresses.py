"""Where a webhook may go (S24 to S26)."""

from __future__ import annotations

import pytest

from bridge.webhooks.addresses import check_url, refusal, refuse_any


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://hooks.example.com/x?y=z", "hooks.example.com", 443),
        ("https://Hooks.Example.com.:8443", "hooks.example.com", 8443),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443),
        ("https://1password.example.com/", "1password.example.com", 443),
    ],
)
def test_public_names_over_https(url: str, host: str, port: int) -> None:
    """Port 443 or 8443, any path and query."""
    target = check_url(url)
    assert (target.host, target.port, target.literal) == (host, port, False)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "//example.com/",
        "example.com",
        "",
        "https://",
        "https:///x",
        "https://user@example.com/",
        "https://user:pass@example.com/",
        "https://example.com@evil.example/",
        "https://example.com/#x",
        "https://example.com/#",
        "https://example.com:22/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:x/",
        "https://127.0.0.1/",
        "https://8.8.8.8/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://0177.0.0.1/",
        "https://127.0.0.1./",
        "https://bücher.example/",
        "https://exam ple.com/",
        "https://example.com\\@evil.example/",
        "https://example.com/\r\nX: y",
        "https://exa%6dple.com/",
        "https://[fe80::1%25eth0]/",
    ],
)
def test_s24_what_cannot_stand_in_the_file(url: str) -> None:
    """Schemes, users, fragments, ports, and addresses in every disguise."""
    with pytest.raises(ValueError):
        check_url(url)


def test_the_options_allow_what_they_say() -> None:
    """http with its ports; any port and literal addresses, but no short forms of them."""
    assert check_url("http://example.com/", allow_http=True).port == 80
    assert check_url("http://example.com:8080/", allow_http=True).port == 8080
    with pytest.raises(ValueError):
        check_url("http://example.com:9000/", allow_http=True)
    assert check_url("https://worker:9000/", allow_private=True).port == 9000
    assert check_url("https://10.0.0.1/", allow_private=True).literal
    assert check_url("http://[::1]:81/", allow_private=True, allow_http=True) == ("http://[::1]:81/", "::1", 81, True)
    with pytest.raises(ValueError):
        check_url("https://127.1/", allow_private=True)


_FORBIDDEN = [
    "0.0.0.0",
    "::",
    "168.63.129.16",
    "169.254.169.254",
    "fd00:ec2::254",
    "224.0.0.1",
    "255.255.255.255",
    "ff02::1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2002:a83f:8110::",
    "2001:0:a9fe:a9fe::1",
    "2001::ffff:5601:5601",
    "::ffff:0:a9fe:a9fe",
    "nonsense",
    "",
]
_PRIVATE = [
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.1.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "240.0.0.1",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2001:1::5",
    "2001:db8::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "100::1",
]


@pytest.mark.parametrize("address", _FORBIDDEN)
def test_s26_never(address: str) -> None:
    """Multicast, nowhere, and what hands out a machine's credentials, however it is wrapped, whatever is allowed."""
    assert refusal(address) is not None
    assert refusal(address, allow_private=True) is not None


@pytest.mark.parametrize("address", _PRIVATE)
def test_s26_private_only_where_allowed(address: str) -> None:
    """By our own list: Python's `is_private` and `is_global` let several of these through."""
    assert refusal(address) is not None
    assert refusal(address, allow_private=True) is None


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8"]
)
def test_public_addresses_pass(address: str) -> None:
    """Also written as IPv6."""
    assert refusal(address) is None


def test_s25_one_bad_answer_refuses_them_all() -> None:
    """A name that also resolves to an address inside is not picked apart."""
    assert refuse_any(["8.8.8.8", "1.1.1.1"]) is None
    assert refuse_any(["8.8.8.8", "127.0.0.1"]) is not None
    assert refuse_any([]) is not None
