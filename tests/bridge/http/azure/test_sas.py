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

from bridge.http.azure.accounts import Accounts
from bridge.http.azure.auth import SignatureAuthorizer
from bridge.http.azure.errors import AzureError
from bridge.http.azure.exchange import Request
from bridge.http.azure.operation import Operation
from bridge.http.azure.policies import Policy
from bridge.http.azure.sas import account_string, queue_string

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


# -- when, and by whose word -------------------------------------------------------------------------------------------


def words(token: str, **more: Any) -> str:
    """What a refusal says to whoever looks for the fault."""
    with pytest.raises(AzureError) as caught:
        authorize(token, **more)
    assert caught.value.code == "AuthenticationFailed"
    return str(caught.value.details["AuthenticationErrorDetail"])


@pytest.mark.parametrize("made", [of_queue, of_account], ids=["queue", "account"])
def test_a_signature_holds_from_its_start_until_its_expiry(made: Any) -> None:
    """From the second of `st` on, and no more at the second of `se`."""
    token = made(start=NOW, expiry=NOW + HOUR)
    second = datetime.timedelta(seconds=1)
    assert authorize(token, now=NOW)
    assert authorize(token, now=NOW + HOUR - second)
    assert "(st)" in words(token, now=NOW - second)
    assert "(se)" in words(token, now=NOW + HOUR)


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
    assert f"both say {name};" in words(token)


@pytest.mark.parametrize("present", ["ss", "srt"])
def test_either_word_makes_it_a_signature_of_an_account(present: str) -> None:
    """A signature of a queue with one of them is read, and refused, as one of an account."""
    assert "over this text: 'acme\n" in words(f"{of_queue('r')}&{present}=q")


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


def test_every_field_of_a_signature_of_an_account_is_covered_in_its_line() -> None:
    """The text as the documents have it; since 2020-12-06 with one line more."""
    text = "acme\n" + "".join(f"{value}\n" for value in FIELDS.values())
    assert authorize(by_hand(text, **FIELDS))
    newer = {**FIELDS, "sv": "2020-12-06"}
    text = "acme\n" + "".join(f"{value}\n" for value in newer.values())
    assert authorize(by_hand(f"{text}\n", **newer))
    assert code(by_hand(text, **newer)) == "AuthenticationFailed"


@pytest.mark.parametrize(("fields", "since"), [({"ss": "q", "srt": "o"}, "2015-04-05"), ({}, "2012-02-12")])
def test_a_signature_without_a_version_is_told_which_it_needs(fields: dict[str, str], since: str) -> None:
    """It has no text that it could cover."""
    assert since in words(by_hand("x", **fields))


@pytest.mark.parametrize(
    "sip", ["nowhere", "127.0.0.1-nowhere", "::1-127.0.0.255", "0.0.0.1-::ffff", "-", "10.0.0.1-10.0.0.9"]
)
def test_addresses_that_are_not_granted(sip: str) -> None:
    """What is no address, what mixes the families, and what lies elsewhere."""
    fields = {**FIELDS, "sip": sip}
    text = "acme\n" + "".join(f"{value}\n" for value in fields.values())
    assert code(by_hand(text, **fields)) == "AuthorizationSourceIPMismatch"


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("lacks srt.", by_hand("acme\nr\nq\n\n\n\n\n\n2018-11-09\n", sp="r", ss="q", sv="2018-11-09")),
        ("lacks sp.", by_hand("acme\n\nq\no\n\n\n\n\n2018-11-09\n", ss="q", srt="o", sv="2018-11-09")),
        ("(se)", by_hand("acme\nr\nq\no\n\n\n\n\n2018-11-09\n", sp="r", ss="q", srt="o", sv="2018-11-09")),
        ("(se)", by_hand(WITHOUT_END, sp="r", sv="2020-12-06")),
        ("moment in se ", by_hand(WITH_A_WORD, sp="r", se="soon", sv="2020-12-06")),
        ("(sp)", of_queue(None, policy_id="open")),
        ("(si)", of_queue(None, expiry=None, policy_id="gone")),
        ("user delegation key", of_queue() + "&skoid="),
        ("user delegation key", of_queue() + "&sktid="),
        ("user delegation key", of_queue() + "&sduoid="),
    ],
)
def test_what_is_missing_is_named(name: str, token: str) -> None:
    """By the name of its field in the signature, for whoever made it."""
    assert name in words(token)


OF_QUEUE = {
    "sp": "r",
    "st": "2026-11-20T21:00:00Z",
    "se": "2026-11-20T22:00:00Z",
    "si": "open",
    "sip": "127.0.0.1",
    "spr": "https,http",
}


@pytest.mark.parametrize(
    ("version", "service", "more"),
    [
        ("2012-02-12", "", ()),
        ("2015-02-20", "", ()),
        ("2015-02-21", "/queue", ()),
        ("2015-04-04", "/queue", ()),
        ("2015-04-05", "/queue", ("sip", "spr")),
        ("2020-12-06", "/queue", ("sip", "spr")),
    ],
)
def test_every_field_of_a_signature_of_a_queue_is_covered_in_its_line(
    version: str, service: str, more: tuple[str, ...]
) -> None:
    """The text as the documents have it, on the very day of each version; a field less, and its line is empty."""
    for left_out in ("", *more, "st"):
        fields = {name: value for name, value in OF_QUEUE.items() if name != left_out}
        get = fields.get
        lines = [get("sp", ""), get("st", ""), get("se", ""), f"{service}/acme/orders", get("si", "")]
        lines += [get(name, "") for name in more]
        assert authorize(by_hand("\n".join([*lines, version]), **fields, sv=version))


def test_versions_of_before_signatures_are_refused() -> None:
    """On the day before, whatever was signed."""
    assert "2012-02-12" in words(by_hand("r\n\n\n/acme/orders\n\n2012-02-11", sp="r", sv="2012-02-11"))
    fields = {**FIELDS, "sv": "2015-04-04"}
    assert "2015-04-05" in words(of_fields(fields))
    fields = {**FIELDS, "sv": "2015-04-05"}
    assert authorize(of_fields(fields))


@pytest.mark.parametrize(("version", "more"), [("2020-12-05", ""), ("2020-12-06", "<ses>\n")])
def test_the_scope_is_a_line_since_its_version(version: str, more: str) -> None:
    """Of an account's signature, and the last one."""
    fields = {**FIELDS, "sv": version}
    text = "acme\n" + "".join(f"{value}\n" for value in fields.values()) + more
    assert authorize(by_hand(text, **fields, ses="<ses>"))


@pytest.mark.parametrize(
    ("sip", "address", "granted"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "10.0.0.0", False),
        ("10.0.0.1-10.0.0.3", "10.0.0.0", False),
        ("10.0.0.1-10.0.0.3", "10.0.0.1", True),
        ("10.0.0.1-10.0.0.3", "10.0.0.3", True),
        ("10.0.0.1-10.0.0.3", "10.0.0.4", False),
        ("10.0.0.1-10.0.0.3", "::ffff:10.0.0.2", True),
        ("10.0.0.1-10.0.0.3", "::a00:2", False),
        ("::1-::3", "::2", True),
        ("::1-::3", "0.0.0.2", False),
        ("0.0.0.1-::3", "0.0.0.2", False),
        ("::1-0.0.0.3", "::2", False),
        ("10.0.0.1", "nowhere", False),
        ("10.0.0.1-10.0.0.2-10.0.0.3", "10.0.0.2", False),
        ("", "nowhere", True),
    ],
)
def test_the_range_of_addresses_to_its_ends(sip: str, address: str, granted: bool) -> None:
    """Of one family, and the address that came is of the same; one that came mapped is what it maps."""
    fields = {**FIELDS, "sip": sip}
    token = of_fields(fields)
    if granted:
        assert authorize(token, address=address)
    else:
        assert code(token, address=address) == "AuthorizationSourceIPMismatch"


@pytest.mark.parametrize(
    ("spr", "secure", "granted"),
    [("", False, True), ("https,http", False, True), ("https", True, True), ("https", False, False)],
)
def test_the_protocol_is_what_was_granted(spr: str, secure: bool, granted: bool) -> None:
    """Both unless https alone is named."""
    fields = {**FIELDS, "spr": spr}
    token = of_fields(fields)
    if granted:
        assert authorize(token, secure=secure)
    else:
        assert code(token, secure=secure) == "AuthorizationProtocolMismatch"


@pytest.mark.parametrize("spr", ["http", "http,https", "HTTPS"])
def test_a_protocol_of_another_form_is_named(spr: str) -> None:
    """There are two forms."""
    assert "(spr)" in words(of_fields({**FIELDS, "spr": spr}), secure=True)


@pytest.mark.parametrize(("services", "granted"), [("q", True), ("bfqt", True), ("bft", False)])
def test_the_service_has_to_be_named(services: str, granted: bool) -> None:
    """Among others or alone."""
    fields = {**FIELDS, "ss": services}
    token = of_fields(fields)
    if granted:
        assert authorize(token)
    else:
        assert code(token) == "AuthorizationServiceMismatch"


def test_the_policy_is_that_of_the_queue_and_of_its_name() -> None:
    """The account and the queue ask for it; of several the one that is named, wherever it stands."""
    asked: list[str] = []

    def of(queue: str) -> tuple[Policy, ...]:
        asked.append(queue)
        return POLICIES["acme/orders"]

    authorizer = SignatureAuthorizer(Accounts({"acme": [RAW_KEY]}), of)
    query = dict(parse_qsl(of_queue("a", policy_id="open")))
    grant = authorizer.authorize(Request("GET", "/orders", query, {}, "acme", queue="orders"), NOW)
    assert asked == ["acme/orders"]
    assert grant.allows(Operation.PUT_MESSAGE, "orders")
    assert not grant.allows(Operation.GET_MESSAGES, "orders")
    authorizer.authorize(Request("GET", "/orders", dict(parse_qsl(of_queue("a"))), {}, "acme", queue="orders"), NOW)
    assert len(asked) == 1


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
