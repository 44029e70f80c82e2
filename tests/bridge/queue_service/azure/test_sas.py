"""Shared access signatures, those of the SDK and those of earlier versions."""

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
from multidict import CIMultiDict

from bridge.queue_service.azure.accounts import Accounts
from bridge.queue_service.azure.auth import SignatureAuthorizer
from bridge.queue_service.azure.authorization import Grant, Signed
from bridge.queue_service.azure.errors import AzureError
from bridge.queue_service.azure.operation import Operation
from bridge.queue_service.azure.policies import Policy

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


def authorize(token: str, queue: str = "orders", now: datetime.datetime = NOW, **more: Any) -> Grant:
    """Send a request with this signature."""
    query = {name.lower(): value for name, value in parse_qsl(token, keep_blank_values=True)}
    fields = {"address": "127.0.0.1", **more}
    return AUTHORIZER.authorize(Signed("GET", f"/{queue}", query, CIMultiDict(), "acme", queue=queue, **fields), now)


def code(*args: Any, **more: Any) -> str:
    """The code of the refusal of a request that must be refused."""
    with pytest.raises(AzureError) as caught:
        authorize(*args, **more)
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
    ("letters", "allowed"),
    [
        ("r", {Operation.PEEK_MESSAGES, Operation.GET_QUEUE_METADATA}),
        ("a", {Operation.PUT_MESSAGE}),
        ("u", {Operation.UPDATE_MESSAGE}),
        ("p", {Operation.GET_MESSAGES, Operation.DELETE_MESSAGE}),
    ],
)
def test_letters_of_a_queue(letters: str, allowed: set[Operation]) -> None:
    """Each letter allows what the documents say, on this queue and nothing else."""
    grant = authorize(of_queue(letters))
    assert {each for each in Operation if grant.allows(each, "orders")} == allowed
    assert not any(grant.allows(each, "other") for each in Operation)


@pytest.mark.parametrize(
    ("letters", "types", "allowed"),
    [
        ("l", "s", {Operation.LIST_QUEUES}),
        ("r", "s", {Operation.GET_SERVICE_PROPERTIES, Operation.GET_SERVICE_STATS}),
        ("w", "s", {Operation.SET_SERVICE_PROPERTIES}),
        ("c", "c", {Operation.CREATE_QUEUE}),
        ("w", "c", {Operation.CREATE_QUEUE, Operation.SET_QUEUE_METADATA}),
        ("d", "c", {Operation.DELETE_QUEUE}),
        ("d", "o", {Operation.CLEAR_MESSAGES}),
        ("a", "o", {Operation.PUT_MESSAGE}),
        ("p", "o", {Operation.GET_MESSAGES, Operation.DELETE_MESSAGE}),
        ("u", "o", {Operation.UPDATE_MESSAGE}),
        ("r", "o", {Operation.PEEK_MESSAGES}),
    ],
)
def test_letters_of_an_account(letters: str, types: str, allowed: set[Operation]) -> None:
    """Letter and level have to allow it; the access policies of a queue are for keys alone."""
    grant = authorize(of_account(letters, types))
    found = set()
    for each in Operation:
        if each.level not in types and each.account_letters:
            with pytest.raises(AzureError, match="AuthorizationResourceTypeMismatch"):
                grant.allows(each, "orders")
        elif grant.allows(each, "orders"):
            found.add(each)
    assert found == allowed


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"sp": "r", "st": "2026-11-20", "se": "2026-11-21", "sv": "2012-02-12"},
            "r\n2026-11-20\n2026-11-21\n/acme/orders\n\n2012-02-12",
        ),
        ({"sp": "r", "se": "2026-11-21", "sv": "2015-02-21"}, "r\n\n2026-11-21\n/queue/acme/orders\n\n2015-02-21"),
        (
            {"sp": "r", "se": "2026-11-21", "sip": "127.0.0.1", "spr": "https,http", "sv": "2015-04-05"},
            "r\n\n2026-11-21\n/queue/acme/orders\n\n127.0.0.1\nhttps,http\n2015-04-05",
        ),
        (
            {"sp": "r", "ss": "bq", "srt": "o", "se": "2026-11-21T00:00Z", "sv": "2015-04-05"},
            "acme\nr\nbq\no\n\n2026-11-21T00:00Z\n\n\n2015-04-05\n",
        ),
        (
            {"sp": "r", "ss": "q", "srt": "o", "se": "2026-11-21", "sv": "2020-12-06", "ses": "mine"},
            "acme\nr\nq\no\n\n2026-11-21\n\n\n2020-12-06\nmine\n",
        ),
    ],
    ids=["queue 2012", "queue 2015-02", "queue 2015-04", "account 2015", "account 2020"],
)
def test_each_version_signs_its_own_text(fields: dict[str, str], text: str) -> None:
    """A token made by hand for a version is let in, and is not one of another version."""
    assert authorize(by_hand(text, **fields)).allows(Operation.PEEK_MESSAGES, "orders")
    later = {**fields, "sv": "2025-11-05"}
    assert code(by_hand(text, **later)) == "AuthenticationFailed"


@pytest.mark.parametrize("name", ["sp", "se", "sv", "sip", "spr"])
def test_no_field_of_a_token_can_be_changed(name: str) -> None:
    """Each is signed."""
    token = of_queue("r", ip="127.0.0.1", protocol="https,http")
    fields = dict(parse_qsl(token))
    other = {"sp": "raup", "se": "2030-01-01", "sv": "2020-12-06", "sip": "0.0.0.0-255.255.255.255", "spr": "https"}
    fields[name] = other[name]
    assert (
        code("&".join(f"{key}={value.replace('+', '%2B')}" for key, value in fields.items())) == "AuthenticationFailed"
    )


def test_a_token_of_one_queue_opens_no_other() -> None:
    """The queue is signed, and so is that there is one."""
    assert code(of_queue(), "other") == "AuthenticationFailed"
    assert code(of_queue(), "") == "AuthenticationFailed"


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


@pytest.mark.parametrize(
    ("ip", "address"),
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.0-127.0.0.9", "127.0.0.9"), ("127.0.0.1", "::ffff:127.0.0.1")],
)
def test_addresses_that_are_granted(ip: str, address: str) -> None:
    """One, a range with both ends, and one that came mapped."""
    assert authorize(of_queue("r", ip=ip), address=address).allows(Operation.PEEK_MESSAGES, "orders")


def test_https_alone_is_granted_over_https() -> None:
    """The protocol is that of the connection."""
    assert authorize(of_queue("r", protocol="https"), secure=True).allows(Operation.PEEK_MESSAGES, "orders")


def test_a_stored_policy_says_what_the_token_leaves_open() -> None:
    """Times and letters come from either, never from both."""
    grant = authorize(of_queue(None, expiry=None, policy_id="reader"))
    assert grant.allows(Operation.PEEK_MESSAGES, "orders")
    assert not grant.allows(Operation.PUT_MESSAGE, "orders")
    assert authorize(of_queue("a", policy_id="open")).allows(Operation.PUT_MESSAGE, "orders")


@pytest.mark.parametrize(
    ("permission", "more"),
    [
        (None, {"expiry": None, "policy_id": "gone"}),
        (None, {"expiry": None, "policy_id": "ended"}),
        (None, {"expiry": None, "policy_id": "later"}),
        (None, {"expiry": None, "policy_id": "open"}),
        (None, {"policy_id": "open"}),
        (None, {"policy_id": "reader"}),
        ("raup", {"expiry": None, "policy_id": "reader"}),
    ],
    ids=["taken back", "ended", "not yet", "no expiry", "no letters", "two expiries", "two letters"],
)
def test_a_stored_policy_that_does_not_fit(permission: str | None, more: dict[str, Any]) -> None:
    """One that was taken back ends every token that names it."""
    assert code(of_queue(permission, **more)) == "AuthenticationFailed"
