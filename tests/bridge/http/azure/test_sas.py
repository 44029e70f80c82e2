"""Shared access signatures, those of the SDK and those of earlier versions (S36)."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
from typing import Any
from urllib.parse import parse_qsl

import pytest
from azure.storage.queue import (
    AccountSasPermissions,
    QueueSasPermissions,
    ResourceTypes,
    Services,
    generate_account_sas,
    generate_queue_sas,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from queuebell.bridge.http.azure.accounts import Accounts
from queuebell.bridge.http.azure.auth import SignatureAuthorizer, account_string, queue_string
from queuebell.bridge.http.azure.errors import AzureError
from queuebell.bridge.http.azure.exchange import Operation, Request
from queuebell.bridge.http.azure.records import Policy

NOW = datetime.datetime(2026, 11, 20, 21, 30, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
RAW_KEY = b"k" * 64
KEY = base64.b64encode(RAW_KEY).decode()
WITHOUT_END = "r\n\n\n/queue/acme/orders\n\n\n\n2020-12-06"
WITH_A_WORD = "r\n\nsoon\n/queue/acme/orders\n\n\n\n2020-12-06"
POLICIES = {
    "acme/orders": (
        Policy("reader", expiry=NOW + HOUR, permissions="r"),
        Policy("open"),
        Policy("ended", expiry=NOW - HOUR, permissions="raup"),
        Policy("later", start=NOW + HOUR, expiry=NOW + 2 * HOUR, permissions="r"),
    )
}
AUTHORIZER = SignatureAuthorizer(Accounts({"acme": [RAW_KEY]}), lambda queue: POLICIES.get(queue, ()))


def authorize(token: str, queue: str = "orders", now: datetime.datetime = NOW, **more: Any) -> Any:
    """Send a request with this signature."""
    query = {name.lower(): value for name, value in parse_qsl(token, keep_blank_values=True)}
    fields = {"address": "127.0.0.1", **more}
    return AUTHORIZER.authorize(Request("GET", f"/{queue}", query, CIMultiDict(), "acme", queue=queue, **fields), now)


def code(*args: Any, **more: Any) -> str:
    """The code of the refusal of a request that must be refused."""
    with pytest.raises(AzureError) as caught:
        authorize(*args, **more)
    if caught.value.code == "AuthenticationFailed":
        assert isinstance(caught.value.details["AuthenticationErrorDetail"], str), "it does not say what is wrong"
    return caught.value.code


def of_queue(permission: str | None = "raup", **more: Any) -> str:
    """A signature of one queue by the SDK."""
    given = {"expiry": NOW + HOUR, **more}
    sp = None if permission is None else QueueSasPermissions.from_string(permission)
    return generate_queue_sas("acme", "orders", KEY, permission=sp, **given)


def of_account(permission: str = "rwdlacup", types: str = "sco", services: str = "q", **more: Any) -> str:
    """A signature of the account by the SDK."""
    return generate_account_sas(
        "acme",
        KEY,
        ResourceTypes.from_string(types),
        AccountSasPermissions.from_string(permission),
        more.pop("expiry", NOW + HOUR),
        services=Services.from_string(services),
        **more,
    )


def by_hand(text: str, **fields: str) -> str:
    """A signature over a text."""
    signature = base64.b64encode(hmac.new(RAW_KEY, text.encode(), hashlib.sha256).digest()).decode()
    return "&".join(f"{name}={value.replace('+', '%2B')}" for name, value in {**fields, "sig": signature}.items())


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (of_queue(expiry=NOW), "AuthenticationFailed"),
        (of_queue(start=NOW + HOUR), "AuthenticationFailed"),
        (of_account(expiry=NOW - HOUR), "AuthenticationFailed"),
        (of_queue(ip="10.0.0.1"), "AuthorizationSourceIPMismatch"),
        (of_queue(ip="10.0.0.1-10.0.0.9"), "AuthorizationSourceIPMismatch"),
        (of_queue(protocol="https"), "AuthorizationProtocolMismatch"),
        (of_account(services="bt"), "AuthorizationServiceMismatch"),
        (by_hand(WITHOUT_END, sp="r", sv="2020-12-06"), "AuthenticationFailed"),
        (by_hand(WITH_A_WORD, sp="r", se="soon", sv="2020-12-06"), "AuthenticationFailed"),
        (of_queue() + "&skoid=x", "AuthenticationFailed"),
        ("sig=AAAA", "AuthenticationFailed"),
        ("sig=&sv=2020-12-06&se=2027-01-01&sp=r", "AuthenticationFailed"),
        ("ss=q&srt=sco&sig=AAAA&sv=2012-02-12", "AuthenticationFailed"),
    ],
)  # fmt: skip
def test_what_is_not_granted(token: str, expected: str) -> None:
    """Time, address, protocol and service each have their refusal."""
    assert code(token) == expected


# -- when, and by whose word -------------------------------------------------------------------------------------------


def words(token: str, **more: Any) -> str:
    """What a refusal says to whoever looks for the fault."""
    with pytest.raises(AzureError) as caught:
        authorize(token, **more)
    assert caught.value.code == "AuthenticationFailed"
    return str(caught.value.details["AuthenticationErrorDetail"])


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("st", of_queue(None, expiry=None, start=NOW, policy_id="later")),
        ("se", of_queue(None, policy_id="reader")),
        ("sp", of_queue("r", expiry=None, policy_id="reader")),
    ],
)
def test_what_both_say_is_named(name: str, token: str) -> None:
    """A signature and its policy may not speak of the same; the refusal says of what."""
    assert f"both set {name};" in words(token)


FIELDS = {
    "sp": "r",
    "ss": "q",
    "srt": "o",
    "st": "2026-11-20T21:00:00Z",
    "se": "2026-11-20T22:00:00Z",
    "sip": "127.0.0.1",
    "spr": "https,http",
    "sv": "2018-11-09",
}


def of_fields(fields: dict[str, str]) -> str:
    """A signature of an account over these fields, line by line."""
    return by_hand("acme\n" + "".join(f"{value}\n" for value in fields.values()), **fields)


@pytest.mark.parametrize(
    "sip", ["nowhere", "127.0.0.1-nowhere", "::1-127.0.0.255", "0.0.0.1-::ffff", "-", "10.0.0.1-10.0.0.9"]
)
def test_addresses_that_are_not_granted(sip: str) -> None:
    """What is no address, what mixes the families, and what lies elsewhere."""
    fields = {**FIELDS, "sip": sip}
    text = "acme\n" + "".join(f"{value}\n" for value in fields.values())
    assert code(by_hand(text, **fields)) == "AuthorizationSourceIPMismatch"


def test_an_ipv4_address_in_ipv6_form_is_the_same_address() -> None:
    """And `https,http` grants both."""
    for sip in ("127.0.0.1", "127.0.0.0-127.0.0.9"):
        authorize(of_fields({**FIELDS, "sip": sip}), address="::ffff:127.0.0.1")
    with pytest.raises(AzureError):
        authorize(of_fields({**FIELDS, "sip": "127.0.0.2"}), address="::ffff:127.0.0.1")


@pytest.mark.parametrize("spr", ["http", "http,https", "HTTPS"])
def test_a_protocol_of_another_form_is_named(spr: str) -> None:
    assert "(spr)" in words(of_fields({**FIELDS, "spr": spr}), secure=True)


_words = st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape")) | st.sampled_from(
    ["r", "raup", "q", "qb", "sco", "o", "https", "http", "https,http", "2026-04-06", "2012-02-12", "2020-12-06", "9",
     "2026-11-20T22:00:00Z", "2026-11-20", "9999-12-31T23:59:59.9999999Z", "0001-01-01", "0001-01-01T00:00:00+14:00",
     "9999-12-31T23:59:59-14:00", "2026-02-30", "127.0.0.1", "127.0.0.0-127.0.0.9", "::1", "0.0.0.0-", "-", "١٢٧.0.0.1",
     "reader", "open", "ended", "later", "acme", "=", "AA==", "é", "\0"]
)  # fmt: skip
_queries = st.dictionaries(
    st.sampled_from(["sv", "ss", "srt", "sp", "st", "se", "sip", "spr", "si", "ses", "sig", "skoid", "sr", "comp"]),
    _words,
    max_size=10,
)
_good = st.sampled_from(
    [
        {"sv": "2026-04-06", "sp": "r", "se": "2026-11-20T22:00:00Z"},
        {"sv": "2026-04-06", "ss": "q", "srt": "o", "sp": "r", "se": "2026-11-20T22:00:00Z"},
    ]
)


@settings(max_examples=150)
@given(_queries, _good, st.booleans(), st.booleans())
def test_whatever_a_signature_says(odd: dict[str, str], good: dict[str, str], nearly: bool, signed: bool) -> None:
    """Also of one who has the key: one kind of refusal, or what its letters grant; never anything without a key."""
    query = {**good, **odd} if nearly else odd
    query.setdefault("sig", "")
    text = ""
    if signed:
        of = account_string if "ss" in query or "srt" in query else queue_string
        try:
            text = account_string("acme", query) if of is account_string else queue_string("acme", "orders", query)
        except AzureError:
            pass  # its version has none
    if text:
        raw = text.encode("utf-8", "surrogateescape")
        query["sig"] = base64.b64encode(hmac.digest(RAW_KEY, raw, "sha256")).decode()
    request = Request("GET", "/orders", query, CIMultiDict(), "acme", queue="orders", address="127.0.0.1")
    try:
        grant, refused = AUTHORIZER.authorize(request, NOW), None
    except AzureError as error:
        grant, refused = None, error
    assert (grant is None) == (refused is not None)
    if grant is not None:
        assert text and "skoid" not in query
        letters = query.get("sp") or "r" * (query.get("si") == "reader")
        allowed = {each for each in Operation if _allows(grant, each)}
        assert not allowed or set(letters) & set("".join(f"{e.account_letters}{e.service_letters}" for e in allowed))
    else:
        assert refused is not None and KEY not in f"{refused} {refused.details}"


def _allows(grant: Any, operation: Operation) -> bool:
    try:
        return bool(grant.allows(operation, "orders"))
    except AzureError:
        return False
