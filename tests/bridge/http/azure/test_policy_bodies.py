"""The body of Set Queue ACL: what is read, and which node a refusal names."""

from __future__ import annotations

import datetime

import pytest

from bridge.http.azure.errors import AzureError
from bridge.http.azure.policies import ID_MAX, POLICIES_MAX, Policy, parse, render


def body(*identifiers: str) -> bytes:
    return f"<SignedIdentifiers>{''.join(identifiers)}</SignedIdentifiers>".encode()


def identifier(id_: str = "guest", policy: str = "") -> str:
    return f"<SignedIdentifier><Id>{id_}</Id><AccessPolicy>{policy}</AccessPolicy></SignedIdentifier>"


@pytest.mark.parametrize(
    ("raw", "code", "node"),
    [
        (body(identifier(), identifier()), "InvalidXmlNodeValue", "Id"),
        (body(identifier("x" * (ID_MAX + 1))), "InvalidXmlNodeValue", "Id"),
        (body(identifier("")), "InvalidXmlNodeValue", "Id"),
        (body(identifier("a", "<Permission>x</Permission>")), "InvalidXmlNodeValue", "Permission"),
        (body(identifier("a", "<Start>soon</Start>")), "InvalidXmlNodeValue", "Start"),
        (body(identifier("a", "<Expiry>soon</Expiry>")), "InvalidXmlNodeValue", "Expiry"),
        (body("<Other></Other>"), "UnsupportedXmlNode", "Other"),
        (body("<SignedIdentifier></SignedIdentifier>"), "MissingRequiredXmlNode", "Id"),
    ],
)
def test_a_refusal_names_the_node(raw: bytes, code: str, node: str) -> None:
    """As clients expect it, in `XmlNodeName`."""
    with pytest.raises(AzureError) as caught:
        parse(raw)
    assert caught.value.code == code
    assert dict(caught.value.details) == {"XmlNodeName": node}


def test_the_limits_are_met_exactly() -> None:
    """As many policies as there may be, with ids as long as they may be; one more is refused."""
    ids = [f"{number}".ljust(ID_MAX, "x") for number in range(POLICIES_MAX)]
    assert [policy.id for policy in parse(body(*map(identifier, ids)))] == ids
    with pytest.raises(AzureError, match="InvalidXmlDocument"):
        parse(body(*map(identifier, [*ids, "more"])))


def test_what_is_read_is_written() -> None:
    """A policy without anything, one without a policy node, and letters in their one order."""
    read = parse(
        body(identifier("a", "<Permission>pr</Permission>"), "<SignedIdentifier><Id>b</Id></SignedIdentifier>")
    )
    assert read == (Policy("a", permissions="rp"), Policy("b"))
    written = render(read)
    assert parse(written) == read
    assert written.endswith(b"<Id>b</Id><AccessPolicy></AccessPolicy></SignedIdentifier></SignedIdentifiers>")


def test_an_empty_body_holds_none() -> None:
    """Blanks included; and so does an empty list."""
    for raw in (b"", b" \r\n\t", body()):
        assert parse(raw) == ()
    assert render(()) == b'<?xml version="1.0" encoding="utf-8"?><SignedIdentifiers></SignedIdentifiers>'


def test_all_that_a_policy_says_is_read_and_written_in_its_order() -> None:
    """Start, expiry and letters; blanks around them say nothing, and nothing between them leaves them open."""
    start = datetime.datetime(2026, 11, 20, 21, 30, tzinfo=datetime.UTC)
    said = "<Start> 2026-11-20T21:30:00Z\n</Start><Expiry> 2026-11-21\n</Expiry><Permission> puar\n</Permission>"
    open_ = "<Start> </Start><Expiry> </Expiry><Permission> </Permission>"
    read = parse(body(identifier("a&lt;b", said), identifier("c", open_)))
    assert read == (Policy("a<b", start, datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC), "raup"), Policy("c"))
    assert render(read) == (
        b'<?xml version="1.0" encoding="utf-8"?><SignedIdentifiers>'
        b"<SignedIdentifier><Id>a&lt;b</Id><AccessPolicy><Start>2026-11-20T21:30:00.0000000Z</Start>"
        b"<Expiry>2026-11-21T00:00:00.0000000Z</Expiry><Permission>raup</Permission></AccessPolicy></SignedIdentifier>"
        b"<SignedIdentifier><Id>c</Id><AccessPolicy></AccessPolicy></SignedIdentifier></SignedIdentifiers>"
    )


def test_a_list_of_another_name_is_no_list() -> None:
    """However few stand in it; an id may be one letter."""
    with pytest.raises(AzureError, match="InvalidXmlDocument"):
        parse(body(identifier()).replace(b"SignedIdentifiers", b"Others"))
    assert parse(body(identifier("a"))) == (Policy("a"),)
