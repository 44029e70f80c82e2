"""Shared Key and Shared Key Lite: the text that is signed, letter by letter, and who is let in (S36)."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from bridge.http.azure.accounts import Accounts
from bridge.http.azure.auth import SignatureAuthorizer, strings_to_sign
from bridge.http.azure.errors import AzureError
from bridge.http.azure.exchange import Request
from bridge.http.azure.operation import Operation
from bridge.http.azure.signature import matches, shown
from tests.support.azure import SIGNED_HEADERS

NOW = datetime.datetime(2026, 11, 20, 21, 30, tzinfo=datetime.UTC)
DATE = "Fri, 20 Nov 2026 21:30:00 GMT"
KEYS = {"acme": [b"k" * 64, b"second key".ljust(64)], "devstoreaccount1": [b"e" * 64]}
AUTHORIZER = SignatureAuthorizer(Accounts(KEYS), lambda _: ())


def request(headers: dict[str, str] | None = None, **more: Any) -> Request:
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
    return Request(headers=CIMultiDict(given), **{**fields, **more})


def sign(text: str, key: bytes = KEYS["acme"][0]) -> str:
    """Sign as the documents say."""
    return base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()


def with_header(signed: Request, value: str) -> Request:
    """The same request with an Authorization header."""
    headers = CIMultiDict(signed.headers)
    headers["Authorization"] = value
    return request(dict(headers), method=signed.method, path=signed.path, query=signed.query, account=signed.account)


def refusal(signed: Request, now: datetime.datetime = NOW, authorizer: SignatureAuthorizer = AUTHORIZER) -> AzureError:
    """The refusal of a request that must be refused."""
    with pytest.raises(AzureError) as caught:
        authorizer.authorize(signed, now)
    if caught.value.code == "AuthenticationFailed":
        assert isinstance(caught.value.details["AuthenticationErrorDetail"], str), "it does not say what is wrong"
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
def test_the_long_form_is_what_the_documents_say(signed: Request, text: str) -> None:
    """Verb, eleven headers, ours in order, the resource with the account twice at an emulator, the query sorted."""
    assert next(strings_to_sign(signed, lite=False)) == text


@pytest.mark.parametrize("version", ["2026-04-06", None])
def test_the_short_form_is_what_the_documents_say(version: str | None) -> None:
    """Verb, digest, type, date; of the query only comp; versions before 2009-09-19 know no other form."""
    headers = {"Content-MD5": "MQ==", "Content-Type": "text/plain", "Date": DATE, "x-ms-meta-a": "b"}
    signed = Request(
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
    twice = Request("POST", "/orders/messages", {}, headers, "acme")
    assert f"x-ms-date:{DATE}\nx-ms-meta-a:2,1\nx-ms-version" in next(strings_to_sign(twice, lite=False))


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


def test_a_signature_is_the_hmac_of_the_text_by_any_of_the_keys() -> None:
    """Of the bytes as they came, those that are no text too; a signature of such bytes is a wrong one like others."""
    signature = base64.b64encode(hmac.digest(b"key", b"GET\n\xff", "sha256")).decode()
    assert matches((b"other", b"key"), "GET\n\udcff", signature)
    assert not matches((b"other", b"key"), "GET\n\udcfe", signature)
    assert not matches((b"key",), "GET\n\udcff", "\udcff")


# -- each field in its place -------------------------------------------------------------------------------------------


def bare(headers: dict[str, str], version: str = "2026-04-06", **more: Any) -> Request:
    """A request with these headers and a version, and no date of ours."""
    fields = {"method": "PUT", "path": "/q", "query": {}, "account": "acme", "queue": "q", "path_style": False, **more}
    return Request(headers=CIMultiDict({"x-ms-version": version, **headers}), **fields)


@pytest.mark.parametrize(
    "given", [(name,) for name in SIGNED_HEADERS] + [SIGNED_HEADERS, ()], ids=lambda given: "+".join(given[:2])
)
def test_each_header_of_the_long_form_has_its_line(given: tuple[str, ...]) -> None:
    """One alone, all together, and none: what is not given is an empty line."""
    signed = bare({name: f"<{name}>" for name in given})
    lines = "".join(f"<{name}>\n" if name in given else "\n" for name in SIGNED_HEADERS)
    assert next(strings_to_sign(signed, lite=False)) == f"PUT\n{lines}x-ms-version:2026-04-06\n/acme/q"


@pytest.mark.parametrize(
    "given", [(), ("content-md5",), ("content-type",), ("date",)], ids=lambda given: "+".join(given)
)
@pytest.mark.parametrize("query", [{}, {"comp": "acl", "timeout": "5"}], ids=["plain", "comp"])
def test_each_header_of_the_short_form_has_its_line(given: tuple[str, ...], query: dict[str, str]) -> None:
    """Only `comp` of the query is covered; what is not given is an empty line."""
    signed = bare({name: f"<{name}>" for name in given}, query=query)
    names = ("content-md5", "content-type", "date")
    lines = "".join(f"<{name}>\n" if name in given else "\n" for name in names)
    end = "?comp=acl" if query else ""
    assert next(strings_to_sign(signed, lite=True)) == f"PUT\n{lines}x-ms-version:2026-04-06\n/acme/q{end}"


@pytest.mark.parametrize(("version", "long"), [("2009-09-18", False), ("2009-09-19", True)])
def test_the_long_form_begins_with_its_version(version: str, long: bool) -> None:
    """On its very day."""
    text = next(strings_to_sign(bare({}, version), lite=False))
    assert text.count("\n") == (13 if long else 5)


@pytest.mark.parametrize(("version", "length"), [("2015-02-20", "0"), ("2015-02-21", "")])
def test_no_length_is_an_empty_line_since_its_version(version: str, length: str) -> None:
    """On its very day; before, it is a zero."""
    text = next(strings_to_sign(bare({"content-length": "0"}, version), lite=False))
    assert text.splitlines()[3] == length


@pytest.mark.parametrize(("seconds", "let_in"), [(900, True), (901, False), (-900, True), (-901, False)])
@pytest.mark.parametrize("name", ["x-ms-date", "Date"])
def test_a_clock_may_be_fifteen_minutes_off(name: str, seconds: int, let_in: bool) -> None:
    """To the second, either way, by either header."""
    signed = Request(
        headers=CIMultiDict({"x-ms-version": "2026-04-06", name: DATE}),
        method="PUT",
        path="/q",
        query={},
        account="acme",
        queue="q",
        path_style=False,
    )
    signature = sign(next(strings_to_sign(signed, lite=False)))
    headers = {**signed.headers, "Authorization": f"SharedKey acme:{signature}"}
    signed = msgspec.structs.replace(signed, headers=CIMultiDict(headers))
    now = NOW + datetime.timedelta(seconds=seconds)
    if let_in:
        assert AUTHORIZER.authorize(signed, now).allows(Operation.PUT_MESSAGE, "q")
    else:
        assert refusal(signed, now).code == "AuthenticationFailed"


def test_who_comes_without_a_word_is_told_the_scheme() -> None:
    """In the header that clients look for."""
    assert dict(refusal(request()).headers) == {"WWW-Authenticate": "SharedKey"}


@pytest.mark.parametrize(
    "given", ["SharedKey acme:a:b", "SharedKey acme:", "SharedKey :x", "SharedKey acme x:y", "Bearer a b"]
)
def test_odd_credentials_are_read_from_the_left(given: str) -> None:
    """The scheme ends at the first blank, the account at the first colon."""
    code = refusal(with_header(request(), given)).code
    wrong = given in ("SharedKey acme:", "SharedKey :x")
    assert code == ("InvalidAuthenticationInfo" if wrong else "AuthenticationFailed")


def test_a_refusal_shows_the_text_line_by_line() -> None:
    """Ends of lines are kept: whoever compares needs them."""
    said = refusal(with_header(request(), "SharedKey acme:x")).details["AuthenticationErrorDetail"]
    assert f"POST\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{DATE}\n" in str(said)


def test_words_sort_by_where_their_hyphen_stands() -> None:
    """Names that differ by hyphens alone: the later the hyphen the earlier the name, and without one first of all."""
    names = ["x-ms-meta-abc", "x-ms-meta-ab-c", "x-ms-meta-a-bc", "x-ms-meta-a-b-c", "x-ms-meta-abd", "x-ms-meta-b"]
    for order in (names, names[::-1]):
        readings = list(strings_to_sign(bare(dict.fromkeys(order, "1")), lite=False))
        assert [line[:-2] for line in readings[1].split("\n") if line.startswith("x-ms-meta")] == [
            "x-ms-meta-abc",
            "x-ms-meta-ab-c",
            "x-ms-meta-a-bc",
            "x-ms-meta-a-b-c",
            "x-ms-meta-abd",
            "x-ms-meta-b",
        ]
        assert [line[:-2] for line in readings[0].split("\n") if line.startswith("x-ms-meta")] == sorted(names)


def test_each_reading_is_tried_once() -> None:
    """By bytes and by words, with the blanks as they came and as one, by either name of the second endpoint."""
    one = bare({"x-ms-meta-a": "1"}, path="/acme-secondary/q-secondary", secondary=True, path_style=True)
    ends = [text.rpartition("\n")[2] for text in strings_to_sign(one, lite=False)]
    assert ends == ["/acme/acme-secondary/q-secondary", "/acme/acme/q-secondary"]
    for secondary, path_style in ((True, False), (False, True), (False, False)):
        one = bare({}, path="/q-secondary", secondary=secondary, path_style=path_style)
        assert len(list(strings_to_sign(one, lite=False))) == 1
    four = bare({"x-ms-meta-a1": " a\t", "x-ms-meta-a_": "a  b \t c"})
    middles = [text.split("\n")[12:14] for text in strings_to_sign(four, lite=False)]
    kept = {"x-ms-meta-a1": "x-ms-meta-a1: a\t", "x-ms-meta-a_": "x-ms-meta-a_:a  b \t c"}
    folded = {"x-ms-meta-a1": "x-ms-meta-a1: a ", "x-ms-meta-a_": "x-ms-meta-a_:a b c"}
    assert middles == [
        [lines[name] for name in order]
        for lines in (kept, folded)
        for order in (("x-ms-meta-a1", "x-ms-meta-a_"), ("x-ms-meta-a_", "x-ms-meta-a1"))
    ]


def test_blanks_around_a_credential_are_no_part_of_it() -> None:
    """As around every header's value."""
    signed = request()
    signature = sign(next(strings_to_sign(signed, lite=False)))
    assert AUTHORIZER.authorize(with_header(signed, f"SharedKey  acme:{signature} "), NOW)


def test_of_a_long_text_the_beginning_is_shown() -> None:
    """An answer is bounded, whatever was sent."""
    assert shown("a" * 4096) == "a" * 4096
    assert shown("a" * 4097) == "a" * 4096
    assert shown("a\n\tb\x7f") == "a\n?b?"


# As bytes come off the wire, also where they are no text.
_any = st.binary(max_size=30).map(lambda raw: raw.decode("utf-8", "surrogateescape")) | st.text(max_size=12)
_headers = st.one_of(
    _any,
    st.builds(
        "{}{}{}:{}".format,
        st.sampled_from(["SharedKey", "SharedKeyLite", "sharedkey", "Bearer", "Basic", ""]),
        st.sampled_from([" ", "  ", "\t", ""]),
        st.sampled_from(["acme", "ACME", "acme ", "devstoreaccount1", ""]) | _any,
        st.sampled_from([sign("x"), "AA==", "é", "\udcff", "=" * 9000]) | _any,
    ),
)
_more = st.dictionaries(st.sampled_from(["x-ms-date", "x-ms-version", "date", "x-ms-meta-a", "content-length"]), _any)


@settings(max_examples=150)
@given(_headers, _more, st.booleans())
def test_whatever_a_request_shows(header: str, more: dict[str, str], cased: bool) -> None:
    """One kind of refusal, which holds no key; a good signature over another text is none."""
    given_request = with_header(request(more), header.swapcase() if cased else header)
    with pytest.raises(AzureError) as caught:
        AUTHORIZER.authorize(given_request, NOW)
    assert caught.value.code in ("AuthenticationFailed", "InvalidAuthenticationInfo")
    told = f"{caught.value} {caught.value.details}"
    assert not any(base64.b64encode(key).decode() in told for keys in KEYS.values() for key in keys)
    right = next(strings_to_sign(given_request, lite=False)).encode("utf-8", "surrogateescape")
    signature = base64.b64encode(hmac.digest(KEYS["acme"][0], right, "sha256")).decode()
    assert signature not in told, "what would have been right is not told"
