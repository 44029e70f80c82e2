"""Where a webhook may go (S24 to S26)."""

from __future__ import annotations

import ipaddress

import pytest

from bridge.http.webhooks.addresses import check_url, refusal, refuse_any, unwrap


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
    assert target == (url, host, port, False)


_REASONS = {
    "printable ASCII": (
        "https://bücher.example/",
        "https://exam ple.com/",
        "https://example.com\\@evil.example/",
        "https://example.com/\r\nX: y",
        "https://example.com/\x7f",
    ),
    "begins with https://": ("ftp://example.com/", "file:///etc/passwd", "//example.com/", "example.com", ""),
    "allow_http = true": ("http://example.com/", "http://example.com:443/"),
    "no user or password": (
        "https://user@example.com/",
        "https://user:pass@example.com/",
        "https://example.com@evil.example/",
    ),
    "no fragment": ("https://example.com/#x", "https://example.com/#", "https://example.com#x"),
    "one address": ("https://one.example,two.example/", "https://one.example:443,https://two.example/"),
    "names a host": ("https://", "https:///x", "https://./", "https://exa%6dple.com/", "https://[fe80::1%25eth0]/"),
    "443 or 8443": tuple(f"https://example.com:{port}/" for port in (0, 22, 80, 442, 444, 8080, 8442, 8444, 65535)),
    "(?i)port": ("https://example.com:99999/", "https://example.com:x/"),
    "not an address": (
        "https://127.0.0.1/",
        "https://127.0.0.1./",
        "https://8.8.8.8/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
    ),
    "written in full": (
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0xABCDEF89/",
        "https://0x7f.1/",
        "https://127.0x/",
        "https://0177.0.0.1/",
    ),
}


@pytest.mark.parametrize(("reason", "url"), [(reason, url) for reason, urls in _REASONS.items() for url in urls])
def test_s24_what_cannot_stand_in_the_file(reason: str, url: str) -> None:
    """Schemes, users, fragments, ports, and addresses in every disguise; the complaint says what is wrong."""
    with pytest.raises(ValueError, match=reason):
        check_url(url)


def test_the_options_allow_what_they_say() -> None:
    """http with its ports; any port and literal addresses, but no short forms of them."""
    assert check_url("http://example.com/", allow_http=True).port == 80
    assert check_url("http://example.com:8080/", allow_http=True).port == 8080
    assert check_url("https://example.com:80/", allow_http=True).port == 80
    for port in (0, 79, 81, 9000):
        with pytest.raises(ValueError, match="allow_private"):
            check_url(f"http://example.com:{port}/", allow_http=True)
    assert check_url("https://worker:9000/", allow_private=True).port == 9000
    assert check_url("https://10.0.0.1/", allow_private=True).literal
    assert check_url("http://[::1]:81/", allow_private=True, allow_http=True) == ("http://[::1]:81/", "::1", 81, True)
    with pytest.raises(ValueError, match="in full"):
        check_url("https://127.1/", allow_private=True)


METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "100.100.100.200",
    "192.0.0.192",
    "fd00:ec2::23",
    "fd20:ce::254",
]


def wrappings(address: str) -> list[str]:
    """Every IPv6 address that leads to an IPv4 one: mapped, 6to4, Teredo, and NAT64 with a prefix of each length."""
    number = int(ipaddress.IPv4Address(address))
    local = 0x0064FF9B0001 << 80
    placed = [
        (0xFFFF << 32) | number,
        (0x64FF9B << 96) | number,
        (0x2002 << 112) | number << 80,
        (0x20010000 << 96) | number << 64,
        (0x20010000 << 96) | number ^ 0xFFFFFFFF,
        local | number,
        # RFC 6052 2.2: bits 64 to 71 stay empty.
        local | number >> 16 << 64 | (number & 0xFFFF) << 40,
        local | number >> 24 << 64 | (number & 0xFFFFFF) << 32,
        local | number << 24,
    ]
    return [str(ipaddress.IPv6Address(each)) for each in placed]


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
    "169.254.1.1",
    *METADATA,
    *(wrapped for each in METADATA if "." in each for wrapped in wrappings(each)),
]
_PRIVATE = [
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "64:ff9b:1::a00:1",
    "64:ff9b:1:a00:0:100::",
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
    "fe80::1%an%interface",
    "fec0::1",
    "100::1",
]


@pytest.mark.parametrize("address", _FORBIDDEN)
def test_s26_never(address: str) -> None:
    """Multicast, nowhere, and what hands out a machine's credentials, however it is wrapped, whatever is allowed."""
    assert refusal(address) is not None
    assert refusal(address, allow_private=True) == "it is never an endpoint"


@pytest.mark.parametrize("address", ["", "nonsense", "1.2.3", "%eth0"])
def test_s26_what_is_no_address_is_refused(address: str) -> None:
    """Whatever a resolver gave back."""
    assert refusal(address) == refusal(address, allow_private=True) == "it is no address"


@pytest.mark.parametrize("address", _PRIVATE)
def test_s26_private_only_where_allowed(address: str) -> None:
    """By our own list: Python's `is_private` and `is_global` let several of these through."""
    reason = refusal(address)
    assert reason is not None and "allow_private = true" in reason
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
    for addresses in (["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"]):
        assert refuse_any(addresses) == refusal("127.0.0.1")
        assert refuse_any(addresses, allow_private=True) is None
    assert refuse_any(["127.0.0.1", "::"], allow_private=True) == refusal("::")
    assert "no address" in (refuse_any([]) or "")


@pytest.mark.parametrize(
    ("address", "carried"),
    [
        ("1.2.3.4", []),
        ("2606:4700::102:304", []),
        ("64:ff9b::102:304", ["1.2.3.4"]),
        ("64:ff9b:1::102:304", ["1.2.3.4"]),
        ("64:ff9b:1:102:3:400::", ["1.2.3.4", "2.3.4.0", "3.4.0.0"]),
        ("64:ff9b:1::", []),
        ("::ffff:0:102:304", ["1.2.3.4"]),
        ("::102:304", ["1.2.3.4"]),
        ("::2", ["0.0.0.2"]),
        ("::1", []),
        ("::", []),
        ("2002:102:304:ffff:ffff:ffff:ffff:ffff", ["1.2.3.4"]),
        ("2001:0:102:304:ffff:ffff:fafa:f9f8", ["1.2.3.4", "5.5.6.7"]),
        ("2001:1:102:304::", []),
    ],
)
def test_s26_what_an_address_carries(address: str, carried: list[str]) -> None:
    """Bit by bit, and beside itself: each of them has to be allowed."""
    assert [str(found) for found in unwrap(ipaddress.ip_address(address))] == [address, *carried]


def test_s26_a_mapped_address_is_the_one_it_maps() -> None:
    """A dual socket connects to that one alone."""
    assert unwrap(ipaddress.ip_address("::ffff:1.2.3.4")) == [ipaddress.IPv4Address("1.2.3.4")]


@pytest.mark.parametrize("host", ["deadbeef", "beef.cafe", "0xg", "0xgf", "example.0xX", "0x1x"])
def test_names_that_only_look_like_numbers_are_names(host: str) -> None:
    """Hexadecimal counts after 0x alone, and only if all of it is."""
    assert check_url(f"https://{host}/").host == host.lower()
