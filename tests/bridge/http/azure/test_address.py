"""Addresses of the Azure endpoint: which account, which queue, and what is refused."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.http.azure.address import Address, Resource, locate
from bridge.http.azure.errors import AzureError
from bridge.http.azure.naming import is_queue_name, message_id, metadata_of, metadata_shown, stored_id
from bridge.http.azure.versions import NEWEST, OLDEST, version_of


def named(address: Address) -> tuple[str, bool, Resource, str, str]:
    return address.account, address.secondary, address.resource, address.queue, address.message


@pytest.mark.parametrize(
    ("target", "host", "expected"),
    [
        ("/acc", "127.0.0.1", ("acc", False, Resource.ACCOUNT, "", "")),
        ("/acc/?comp=list", "localhost", ("acc", False, Resource.ACCOUNT, "", "")),
        ("/acc-secondary/", "localhost", ("acc", True, Resource.ACCOUNT, "", "")),
        ("/acc-secondary/acc/orders", "localhost", ("acc", True, Resource.QUEUE, "orders", "")),
        ("/acc-secondary/acc/?comp=list", "localhost", ("acc", True, Resource.ACCOUNT, "", "")),
        ("/acc-x/acc", "localhost", ("acc-x", False, Resource.QUEUE, "acc", "")),
        ("/acc/orders", "[::1]", ("acc", False, Resource.QUEUE, "orders", "")),
        ("/acc/%6frders/messages", "queuebell", ("acc", False, Resource.MESSAGES, "orders", "")),
        ("/acc/orders/messages/a%2Fb?x=1", "queuebell", ("acc", False, Resource.MESSAGE, "orders", "a/b")),
        ("http://127.0.0.1/acc/orders", "127.0.0.1", ("acc", False, Resource.QUEUE, "orders", "")),
        ("/", "acc.queue.localhost", ("acc", False, Resource.ACCOUNT, "", "")),
        ("/orders/messages", "acc-secondary.queue.localhost", ("acc", True, Resource.MESSAGES, "orders", "")),
        ("/acc/orders", "queue.localhost", ("acc", False, Resource.QUEUE, "orders", "")),
        ("/acc/orders", ".queue.localhost", ("acc", False, Resource.QUEUE, "orders", "")),
        ("/acc/orders", "other.queue.", ("acc", False, Resource.QUEUE, "orders", "")),
        ("/acc/orders", "other.queues.localhost", ("acc", False, Resource.QUEUE, "orders", "")),
        ("/orders", "acc.queue.x", ("acc", False, Resource.QUEUE, "orders", "")),
        ("/acc", "acc-secondary.queue.localhost", ("acc", True, Resource.QUEUE, "acc", "")),
        ("/acc/acc", "localhost", ("acc", False, Resource.QUEUE, "acc", "")),
        ("/acc-secondary", "localhost", ("acc", True, Resource.ACCOUNT, "", "")),
        ("/acc-secondary/acc", "localhost", ("acc", True, Resource.ACCOUNT, "", "")),
        ("/acc-secondary/acc/acc", "localhost", ("acc", True, Resource.QUEUE, "acc", "")),
        ("/acc-secondary/orders", "localhost", ("acc", True, Resource.QUEUE, "orders", "")),
        ("/%61cc", "localhost", ("acc", False, Resource.ACCOUNT, "", "")),
        ("/acc/orders/", "localhost", ("acc", False, Resource.QUEUE, "orders", "")),
        ("/acc/orders/Messages/", "localhost", ("acc", False, Resource.MESSAGES, "orders", "")),
        ("/acc/orders/messages/a/", "localhost", ("acc", False, Resource.MESSAGE, "orders", "a")),
        ("", "acc.queue.localhost", ("acc", False, Resource.ACCOUNT, "", "")),
    ],
)
def test_what_is_addressed(target: str, host: str, expected: tuple[str, bool, Resource, str, str]) -> None:
    """The account is the first label of ``account.queue.something``, else the first segment of the path."""
    assert named(locate(target, host)) == expected


@pytest.mark.parametrize(
    ("target", "host", "path", "path_style", "query"),
    [
        ("/acc/%6frders?a=b?c&D=", "localhost", "/acc/%6frders", True, {"a": "b?c", "d": ""}),
        ("/orders/messages", "acc.queue.localhost", "/orders/messages", False, {}),
        ("https://localhost/acc/orders?", "localhost", "/acc/orders", True, {}),
        ("/acc/orders?a=b=c", "localhost", "/acc/orders", True, {"a": "b=c"}),
        ("/acc/orders?a=%31&A=2&a=0&b=", "localhost", "/acc/orders", True, {"a": "0,1,2", "b": ""}),
        ("/acc/orders?a=1+2", "localhost", "/acc/orders", True, {"a": "1 2"}),
    ],
)
def test_the_path_is_kept_as_it_came(
    target: str, host: str, path: str, path_style: bool, query: dict[str, str]
) -> None:
    """Signatures cover it so, and the query decoded, with what comes twice in order."""
    found = locate(target, host)
    assert (found.path, found.path_style, found.query) == (path, path_style, query)


def test_an_address_within_an_address_is_part_of_its_path() -> None:
    """The authority ends at the first slash."""
    with pytest.raises(AzureError, match="InvalidUri"):
        locate("http://acc.queue.localhost/orders/messages/a://b", "acc.queue.localhost")


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/", "InvalidUri"),
        ("/acc/orders/messages/a/b/c", "InvalidUri"),
        ("/acc?" + "&".join(["a=%41"] * 65), "RequestUrlFailedToParse"),
        ("/-secondary", "InvalidUri"),
        ("/acc/orders/others", "InvalidUri"),
        ("/acc/orders/messages/a/b", "InvalidUri"),
        ("/acc/Orders", "InvalidResourceName"),
        ("/acc/a--b", "InvalidResourceName"),
        ("/acc/-ab", "InvalidResourceName"),
        ("/acc/ab-", "InvalidResourceName"),
        ("/acc/a%2Fb", "InvalidResourceName"),
        ("/acc/orders%0a", "InvalidResourceName"),
        ("/acc/ab", "OutOfRangeInput"),
        ("/acc/" + "a" * 64, "OutOfRangeInput"),
        ("/acc/%ff%fe%fd", "RequestUrlFailedToParse"),
        ("/acc?x=%ff", "RequestUrlFailedToParse"),
        ("/acc?" + "&".join(f"n{n}=1" for n in range(65)), "RequestUrlFailedToParse"),
    ],
)
def test_what_is_no_address(target: str, code: str) -> None:
    """Each has the code that the service gives."""
    with pytest.raises(AzureError) as refused:
        locate(target, "127.0.0.1")
    assert refused.value.code == code


def test_names_of_one_query_come_together() -> None:
    """Names in lower case, equal ones sorted and joined, as the signature has them."""
    assert locate("/acc?Comp=list&b=2&B=1", "h").query == {"comp": "list", "b": "1,2"}


def test_queue_names() -> None:
    """3 to 63 of a to z, digits and single hyphens within."""
    assert all(map(is_queue_name, ("abc", "a-b", "0a9", "a" * 63, "a-b-c")))
    assert not any(map(is_queue_name, ("ab", "a" * 64, "a_b", "aBc", "a--b", "abc-", "-abc", "abc\n", "")))


def test_message_ids() -> None:
    """A GUID there and back; anything else is a message that does not exist."""
    assert stored_id(message_id("0123456789abcdef")) == "0123456789abcdef"
    assert stored_id(message_id("0123456789abcdef").upper()) == "0123456789abcdef"
    for text in ("", "0123456789abcdef", "11111111-0000-0000-0123-456789abcdef", message_id("0" * 16) + "\n"):
        with pytest.raises(AzureError) as refused:
            stored_id(text)
        assert refused.value.code == "MessageNotFound"


def test_metadata_of_headers() -> None:
    """Names keep their case, equal ones are joined, and each fault has its code."""
    assert metadata_of([("X-MS-Meta-Foo", "a"), ("other", "x"), ("x-ms-meta-foo", "b")]) == {"Foo": "a,b"}
    for name, value, code in (
        ("", "x", "InvalidMetadata"),
        ("1a", "x", "InvalidMetadata"),
        ("a-b", "x", "InvalidMetadata"),
        ("a", "\u00e9", "InvalidMetadata"),
        ("a", "x" * 8192, "MetadataTooLarge"),
    ):
        with pytest.raises(AzureError) as refused:
            metadata_of([(f"x-ms-meta-{name}", value)])
        assert refused.value.code == code


def test_metadata_of_the_native_interface_makes_no_header() -> None:
    """A line break in a value would be another header: what does not fit is left out."""
    assert metadata_shown({"a": "b", "c d": "e", "f": "g\r\nh: i", "j": "\u00e9"}) == {"a": "b"}


def test_versions() -> None:
    """The header counts, then the signature's, then the oldest; a version that nobody knows is refused."""
    assert version_of({"x-ms-version": NEWEST}, {"sv": "nonsense"}) == NEWEST
    assert version_of({}, {"sv": "2018-03-28", "api-version": "2019-02-02"}) == "2019-02-02"
    assert version_of({}, {"sv": "2018-03-28"}) == "2018-03-28"
    assert version_of({}, {}) == OLDEST
    with pytest.raises(AzureError) as refused:
        version_of({"x-ms-version": "2099-01-01"}, {})
    assert refused.value.code == "InvalidHeaderValue"
    with pytest.raises(AzureError) as refused:
        version_of({}, {"sv": "x"})
    assert refused.value.code == "InvalidQueryParameterValue"


@given(st.text("abAB12=&%+;", max_size=24))
@example("&".join(["a=1"] * 65))
@example("&" * 63)
@example("&" * 64)
@example("a=1&A=2&b&b=")
@example("a=%41&b=&c=1+2&d")
@example("&".join(["a=%41"] * 64))
def test_a_query_is_read_as_the_standard_library_reads_it(text: str) -> None:
    """Also where nothing is to be decoded, which takes a shorter way: names in lower case, equal names joined."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=64)
    except ValueError:
        with pytest.raises(AzureError, match="RequestUrlFailedToParse"):
            locate(f"/acc?{text}", "localhost")
        return
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name.lower(), []).append(value)
    assert locate(f"/acc?{text}", "localhost").query == {name: ",".join(sorted(all_)) for name, all_ in values.items()}
