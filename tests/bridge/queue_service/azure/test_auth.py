"""Shared Key and Shared Key Lite: the text that is signed, letter by letter, and who is let in."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from bridge.queue_service.azure.accounts import Accounts
from bridge.queue_service.azure.auth import SignatureAuthorizer, strings_to_sign
from bridge.queue_service.azure.authorization import Signed
from bridge.queue_service.azure.errors import AzureError
from bridge.queue_service.azure.operation import Operation
from bridge.queue_service.azure.signature import matches

NOW = datetime.datetime(2026, 11, 20, 21, 30, tzinfo=datetime.UTC)
DATE = "Fri, 20 Nov 2026 21:30:00 GMT"
KEYS = {"acme": [b"k" * 64, b"second key".ljust(64)], "devstoreaccount1": [b"e" * 64]}
AUTHORIZER = SignatureAuthorizer(Accounts(KEYS), lambda _: ())


def request(headers: dict[str, str] | None = None, **more: Any) -> Signed:
    """A put to an account of a host name, at the right time, unless told otherwise."""
    given = {"x-ms-date": DATE, "x-ms-version": "2026-04-06", **(headers or {})}
    fields = {
        "method": "POST",
        "path": "/orders/messages",
        "query": {},
        "account": "acme",
        "queue": "orders",
        "path_style": False,
    }
    return Signed(headers=CIMultiDict(given), **{**fields, **more})


def sign(text: str, key: bytes = KEYS["acme"][0]) -> str:
    """Sign as the documents say."""
    return base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()


def with_header(signed: Signed, value: str) -> Signed:
    """The same request with an Authorization header."""
    headers = CIMultiDict(signed.headers)
    headers["Authorization"] = value
    return request(dict(headers), method=signed.method, path=signed.path, query=signed.query, account=signed.account)


def refusal(signed: Signed, now: datetime.datetime = NOW, authorizer: SignatureAuthorizer = AUTHORIZER) -> AzureError:
    """The refusal of a request that must be refused."""
    with pytest.raises(AzureError) as caught:
        authorizer.authorize(signed, now)
    return caught.value


@pytest.mark.parametrize(
    ("signed", "text"),
    [
        (
            request({"Content-Length": "42", "Content-Type": "application/xml", "x-ms-client-request-id": "7"}),
            (
                "POST\n\n\n42\n\napplication/xml\n\n\n\n\n\n\n"
                f"x-ms-client-request-id:7\nx-ms-date:{DATE}\nx-ms-version:2026-04-06\n/acme/orders/messages"
            ),
        ),
        (
            request(
                method="GET",
                path="/devstoreaccount1/orders%2Dnew/messages",
                query={"visibilitytimeout": "30", "numofmessages": "32", "prefix": "a b"},
                account="devstoreaccount1",
                path_style=True,
            ),
            (
                f"GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{DATE}\nx-ms-version:2026-04-06\n"
                "/devstoreaccount1/devstoreaccount1/orders%2Dnew/messages"
                "\nnumofmessages:32\nprefix:a b\nvisibilitytimeout:30"
            ),
        ),
        (
            request({"Content-Length": "0", "Date": "Fri, 20 Nov 2026 21:29:00 GMT", "Range": "bytes=0-1"}),
            f"POST\n\n\n\n\n\n\n\n\n\n\nbytes=0-1\nx-ms-date:{DATE}\nx-ms-version:2026-04-06\n/acme/orders/messages",
        ),
        (
            request({"Content-Length": "0", "x-ms-version": "2014-02-14"}),
            f"POST\n\n\n0\n\n\n\n\n\n\n\n\nx-ms-date:{DATE}\nx-ms-version:2014-02-14\n/acme/orders/messages",
        ),
    ],
    ids=["put", "emulator", "zero length and two dates", "zero length of old"],
)
def test_the_long_form_is_what_the_documents_say(signed: Signed, text: str) -> None:
    """Verb, eleven headers, ours in order, the resource with the account twice at an emulator, the query sorted."""
    assert next(strings_to_sign(signed, lite=False)) == text


@pytest.mark.parametrize("version", ["2026-04-06", None])
def test_the_short_form_is_what_the_documents_say(version: str | None) -> None:
    """Verb, digest, type, date; of the query only comp; versions before 2009-09-19 know no other form."""
    headers = {"Content-MD5": "MQ==", "Content-Type": "text/plain", "Date": DATE, "x-ms-meta-a": "b"}
    signed = Signed(
        "PUT",
        "/orders",
        {"comp": "metadata", "timeout": "20"},
        CIMultiDict(headers if version is None else {**headers, "x-ms-version": version}),
        "acme",
    )
    ours = "x-ms-meta-a:b\n" + ("" if version is None else f"x-ms-version:{version}\n")
    expected = f"PUT\nMQ==\ntext/plain\n{DATE}\n{ours}/acme/orders?comp=metadata"
    assert next(strings_to_sign(signed, lite=version is not None)) == expected


@pytest.mark.parametrize("key", KEYS["acme"])
@pytest.mark.parametrize("scheme", ["SharedKey", "SharedKeyLite"])
def test_either_key_in_either_scheme_grants_everything(scheme: str, key: bytes) -> None:
    """While one key is changed, the other serves."""
    signed = request()
    text = next(strings_to_sign(signed, lite=scheme == "SharedKeyLite"))
    grant = AUTHORIZER.authorize(with_header(signed, f"{scheme} acme:{sign(text, key)}"), NOW)
    assert all(grant.allows(operation, "any") for operation in Operation)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "DELETE"},
        {"path": "/other/messages"},
        {"query": {"visibilitytimeout": "0"}},
        {"headers": {"x-ms-meta-a": "1"}},
        {"headers": {"Content-Length": "1"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_is_signed_cannot_be_changed(change: dict[str, Any]) -> None:
    """The signature of one request lets no other in."""
    signature = sign(next(strings_to_sign(request(), lite=False)))
    header = {"Authorization": f"SharedKey acme:{signature}"}
    AUTHORIZER.authorize(request(header), NOW)
    headers = {**header, **change.get("headers", {})}
    changed = request(headers, **{name: value for name, value in change.items() if name != "headers"})
    error = refusal(changed)
    assert (error.code, error.status) == ("AuthenticationFailed", 403)
    # Whoever built the wrong text sees the right one, as at the service.
    assert "x-ms-version:2026-04-06" in error.details["AuthenticationErrorDetail"]


@pytest.mark.parametrize("minutes", [-16, 16])
def test_a_request_of_another_time_is_refused(minutes: int) -> None:
    """More than a quarter of an hour either way is no longer now, though the signature is right."""
    signed = request()
    signed = with_header(signed, f"SharedKey acme:{sign(next(strings_to_sign(signed, lite=False)))}")
    moved = NOW + datetime.timedelta(minutes=minutes)
    AUTHORIZER.authorize(signed, NOW + datetime.timedelta(minutes=14))
    assert "15 minutes" in refusal(signed, moved).details["AuthenticationErrorDetail"]


@pytest.mark.parametrize("date", ["", "yesterday", "Fri, 20 Foo 2026 21:30:00 GMT", "Fri, 31 Nov 2026 21:30:00 GMT"])
def test_a_request_needs_a_date(date: str) -> None:
    """None, or one that is no date, is refused."""
    signed = with_header(request({"x-ms-date": date}), "SharedKey acme:AAAA")
    assert "date" in refusal(signed).details["AuthenticationErrorDetail"]


@pytest.mark.parametrize(
    ("header", "code", "status"),
    [
        (None, "NoAuthenticationInformation", 401),
        ("SharedKey", "InvalidAuthenticationInfo", 400),
        ("SharedKey acme", "InvalidAuthenticationInfo", 400),
        ("SharedKey :AAAA", "InvalidAuthenticationInfo", 400),
        ("Basic acme:AAAA", "InvalidAuthenticationInfo", 400),
        ("Bearer abc", "AuthenticationFailed", 403),
        ("SharedKey other:AAAA", "AuthenticationFailed", 403),
        ("SharedKey acme:AAAA", "AuthenticationFailed", 403),
        ("SharedKey acme:\udcff", "AuthenticationFailed", 403),
    ],
)
def test_other_headers_are_refused(header: str | None, code: str, status: int) -> None:
    """Each with the code that the service has for it."""
    signed = request() if header is None else with_header(request(), header)
    error = refusal(signed)
    assert (error.code, error.status) == (code, status)


def test_an_account_that_does_not_exist_is_told_like_a_wrong_key() -> None:
    """Nobody learns by it which accounts there are."""
    signed = with_header(request(account="nobody"), "SharedKey nobody:AAAA")
    assert refusal(signed).code == "AuthenticationFailed"
    assert not AUTHORIZER.knows("nobody")
    assert AUTHORIZER.knows("acme")


def test_an_empty_key_never_matches() -> None:
    """An account without keys lets nobody in, whatever the signature."""
    authorizer = SignatureAuthorizer(Accounts({"acme": []}), lambda _: ())
    signed = with_header(request(), f"SharedKey acme:{sign(next(strings_to_sign(request(), lite=False)), b'')}")
    assert refusal(signed, authorizer=authorizer).code == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("headers", "middle"),
    [
        # As SDKs sort: a hyphen counts for nothing, an underscore stands before digits.
        (
            {"x-ms-meta-a-b": "1", "x-ms-meta-ab1": "2", "x-ms-meta-aa": "3"},
            f"x-ms-date:{DATE}\nx-ms-meta-aa:3\nx-ms-meta-a-b:1\nx-ms-meta-ab1:2\n",
        ),
        ({"x-ms-meta-a_": "1", "x-ms-meta-a1": "2"}, f"x-ms-date:{DATE}\nx-ms-meta-a_:1\nx-ms-meta-a1:2\n"),
        # As the documents have it: blanks are one.
        ({"x-ms-meta-a": "two  \tblanks"}, f"x-ms-date:{DATE}\nx-ms-meta-a:two blanks\n"),
    ],
)
def test_other_readings_of_the_documents_are_let_in(headers: dict[str, str], middle: str) -> None:
    """Clients differ in how they sort and fold headers; each signs all of them."""
    signed = request(headers)
    text = f"POST\n\n\n\n\n\n\n\n\n\n\n\n{middle}x-ms-version:2026-04-06\n/acme/orders/messages"
    assert next(strings_to_sign(signed, lite=False)) != text
    AUTHORIZER.authorize(with_header(signed, f"SharedKey acme:{sign(text)}"), NOW)


def test_a_header_that_comes_twice_is_one_with_both_values() -> None:
    """In the order they came, joined by a comma."""
    signed = request()
    headers = CIMultiDict([("x-ms-meta-a", "2"), *signed.headers.items(), ("X-MS-Meta-A", "1")])
    twice = Signed("POST", "/orders/messages", {}, headers, "acme")
    assert f"x-ms-date:{DATE}\nx-ms-meta-a:2,1\nx-ms-version" in next(strings_to_sign(twice, lite=False))


@pytest.mark.parametrize("name", ["", "Content-MD5", "If-Match", "Range", "Content-Language", "X-MS-Meta-A", "Date"])
@pytest.mark.parametrize("lite", [False, True])
def test_headers_in_lower_case_are_signed_like_all_others(name: str, lite: bool) -> None:
    """A dict has its names in lower case already; nothing else about it differs."""
    headers = {"Content-Type": "text/plain", "Content-Length": "3", **({name: "x"} if name else {})}
    signed = request(headers)
    lower = {key.lower(): value for key, value in signed.headers.items()}
    same = msgspec.structs.replace(signed, headers=lower)
    assert list(strings_to_sign(same, lite=lite)) == list(strings_to_sign(signed, lite=lite))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_keys_of_every_length_sign_as_the_standard_library_has_it(length: int) -> None:
    """Beyond a block a key is hashed first (RFC 2104)."""
    key = bytes(range(1, length + 1))
    assert matches([key], "text", sign("text", key))
    assert not matches([key], "text", sign("text", key + b"x"))


@pytest.mark.parametrize("path", ["/acme-secondary/orders", "/acme/orders"])
def test_the_second_endpoint_is_signed_by_either_name(path: str) -> None:
    """SDKs sign the path as they call it, or with the account alone."""
    text = f"GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{DATE}\nx-ms-version:2026-04-06\n/acme{path}"
    header = {"Authorization": f"SharedKey acme:{sign(text)}"}
    AUTHORIZER.authorize(
        request(header, method="GET", path="/acme-secondary/orders", secondary=True, path_style=True), NOW
    )


def test_what_a_refusal_shows_can_stand_in_xml() -> None:
    """The text to sign holds parts of the request; no control character of it comes back."""
    signed = with_header(request(query={"prefix": "a\0\x1b\ufffe"}), "SharedKey acme:AAAA")
    assert "prefix:a???" in refusal(signed).details["AuthenticationErrorDetail"]


@given(st.binary(min_size=1, max_size=200), st.text(max_size=50))
def test_a_signature_is_the_hmac_of_the_text(key: bytes, text: str) -> None:
    """Also with a key longer than a block, and again with the same key: what is kept of a key is its beginning."""
    raw = text.encode("utf-8", "surrogateescape")
    for _ in range(2):
        assert matches((b"other", key), text, base64.b64encode(hmac.digest(key, raw, "sha256")).decode())
    assert not matches((key,), text + "x", base64.b64encode(hmac.digest(key, raw, "sha256")).decode())
