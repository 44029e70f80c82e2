"""Shared Key and Shared Key Lite: the text that is signed, letter by letter, and who is let in (S36)."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import pathlib
import xml.etree.ElementTree as ET
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict

from queuebell.bridge.contract.errors import (
    BadInput,
    Closed,
    ConfigurationError,
    Overloaded,
    QueuebellError,
    QueueNotFound,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from queuebell.bridge.http.azure import xml
from queuebell.bridge.http.azure.accounts import Accounts, AccountSettings, read_accounts
from queuebell.bridge.http.azure.auth import SignatureAuthorizer, strings_to_sign
from queuebell.bridge.http.azure.errors import AzureError, translated
from queuebell.bridge.http.azure.exchange import NEWEST, OLDEST, Request, locate, version_of
from queuebell.bridge.http.azure.records import JsonRecords, Policy
from queuebell.bridge.queues.base import StoredMessage
from queuebell.bridge.queues.served import NoRoom

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
    signed = with_header(request({"x-ms-date": date}), "SharedKey acme:AAAA")
    assert "date" in refusal(signed).details["AuthenticationErrorDetail"]


def test_an_account_that_does_not_exist_is_told_like_a_wrong_key() -> None:
    signed = with_header(request(account="nobody"), "SharedKey nobody:AAAA")
    assert refusal(signed).code == "AuthenticationFailed"


def test_a_header_that_comes_twice_is_one_with_both_values() -> None:
    """In the order they came, joined by a comma."""
    signed = request()
    headers = CIMultiDict([("x-ms-meta-a", "2"), *signed.headers.items(), ("X-MS-Meta-A", "1")])
    twice = Request("POST", "/orders/messages", {}, headers, "acme")
    assert f"x-ms-date:{DATE}\nx-ms-meta-a:2,1\nx-ms-version" in next(strings_to_sign(twice, lite=False))


# -- each field in its place -------------------------------------------------------------------------------------------
def bare(headers: dict[str, str], version: str = "2026-04-06", **more: Any) -> Request:
    """A request with these headers and a version, and no date of ours."""
    fields = {"method": "PUT", "path": "/q", "query": {}, "account": "acme", "queue": "q", "path_style": False, **more}
    return Request(headers=CIMultiDict({"x-ms-version": version, **headers}), **fields)


@pytest.mark.parametrize(("version", "long"), [("2009-09-18", False), ("2009-09-19", True)])
def test_the_long_form_begins_with_its_version(version: str, long: bool) -> None:
    text = next(strings_to_sign(bare({}, version), lite=False))
    assert text.count("\n") == (13 if long else 5)


@pytest.mark.parametrize(
    "given", ["SharedKey acme:a:b", "SharedKey acme:", "SharedKey :x", "SharedKey acme x:y", "Bearer a b"]
)
def test_odd_credentials_are_read_from_the_left(given: str) -> None:
    """The scheme ends at the first blank, the account at the first colon."""
    code = refusal(with_header(request(), given)).code
    wrong = given in ("SharedKey acme:", "SharedKey :x")
    assert code == ("InvalidAuthenticationInfo" if wrong else "AuthenticationFailed")


KEY = base64.b64encode(b"secret".ljust(64)).decode()
FIFTEEN = base64.b64encode(b"x" * 15).decode()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"name": "a/b", "key": KEY}, ": name: must be letters, digits"),
        ({"name": "a" * 81, "key": KEY}, ": name: must be letters, digits"),
        ({"name": "acme-secondary", "key": KEY}, ": name: .* must not end in -secondary"),
        ({"name": "acme"}, " (acme): set exactly one of key, key_file and key_env"),
        ({"name": "acme", "key": KEY, "key_env": "X"}, " (acme): set exactly one of key, key_file and key_env"),
        ({"name": "acme", "key": KEY, "key_file": "X"}, " (acme): set exactly one of key, key_file and key_env"),
        ({"name": "acme", "key_file": "X", "key_env": "X"}, " (acme): set exactly one of key, key_file and key_env"),
        ({"name": "acme", "key": "not base64!"}, " (acme): key: a key must be base64"),
        ({"name": "acme", "key": "!!!!" + KEY}, " (acme): key: a key must be base64"),
        ({"name": "acme", "key": FIFTEEN}, " (acme): key: a key must have at least 16 bytes"),
        ({"name": "acme", "key_env": "SHORT"}, " (acme): key_env: a key must have at least 16 bytes"),
        ({"name": "acme", "key_env": "MISSING"}, " (acme): key_env: MISSING is not set in the environment"),
        ({"name": "acme", "key_file": "/nowhere/key"}, " (acme): key_file: cannot read '/nowhere/key': No such file"),
        ({"name": "acme", "key_file": "/nowhere\0"}, " (acme): key_file: cannot read .*: .*null"),
    ],
)
@pytest.mark.parametrize("before", [0, 1])
def test_a_table_that_is_wrong_is_named(table: dict[str, str], says: str, before: int) -> None:
    """The refusal names the table, counted from one, with its account, the field and what is wrong, but never a key."""
    pattern = f"^azure_account {before + 1}{says.replace('(', '[(]').replace(')', '[)]')}"
    good = [AccountSettings(name="good", key=KEY)] * before
    with pytest.raises(ConfigurationError, match=pattern) as caught:
        read_accounts([*good, AccountSettings(**table)], {"X": KEY, "SHORT": FIFTEEN})
    assert table.get("key", KEY) not in str(caught.value)


@pytest.mark.parametrize(
    ("held", "says"), [("\u00e9", "does not contain a key in base64"), ("?", "a key must be base64")]
)
def test_a_file_that_holds_no_key_is_named(held: str, says: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "key"
    file.write_text(held, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"^azure_account 1 [(]acme[)]: key_file: .*{says}"):
        read_accounts([AccountSettings(name="acme", key_file=str(file))], {})


def test_keys_are_in_no_repr() -> None:
    settings = AccountSettings(name="acme", key=KEY)
    assert repr(settings) == "AccountSettings(name='acme')"
    assert repr(read_accounts([settings], {})) == "Accounts(acme, devstoreaccount1)"


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


@pytest.mark.parametrize(
    ("error", "code", "status", "retry_after", "words"),
    [
        (QueueNotFound("hidden"), "QueueNotFound", 404, None, "does not exist"),
        (UnknownOutcome("hidden"), "OperationTimedOut", 500, None, "may have been carried out"),
        (Overloaded("hidden"), "ServerBusy", 503, "1", "overloaded"),
        (Overloaded("hidden", 0.0), "ServerBusy", 503, "1", "overloaded"),
        (Overloaded("hidden", 2.1), "ServerBusy", 503, "3", "nothing was put"),
        (NoRoom(5), "ServerBusy", 503, "1", "nothing was received"),
        (StoreFull("hidden"), "ServerBusy", 503, "1", "acknowledged messages are safe"),
        (Unsupported("said"), "InternalError", 501, None, "said; nothing was done."),
        (Closed("hidden"), "ServerBusy", 503, "1", "stopping"),
        (BadInput("too_many_queues", "hidden"), "ServerBusy", 503, "1", "too many queues"),
        (BadInput("bad_parameter", "hidden"), "InvalidInput", 400, None, "not valid"),
        (StoreUnavailable("hidden"), "ServerBusy", 503, "1", "cannot do that now"),
        (StoreDamaged("hidden"), "ServerBusy", 503, "1", "cannot do that now"),
        (ConfigurationError("hidden"), "InternalError", 500, None, "internal error"),
    ],
)
def test_what_an_error_of_the_store_is_called(
    error: QueuebellError, code: str, status: int, retry_after: str | None, words: str
) -> None:
    """In the words of the service or in ours, and nothing of the error's own but where it is meant for the client."""
    found = translated(error)
    assert (found.code, found.status, found.headers.get("Retry-After")) == (code, status, retry_after)
    assert words in found.message and "hidden" not in found.message
    assert (found.close, found.details, found.held_s) == (False, {}, 0.0)
    assert str(found) == f"{code}: {found.message}"


POLICY = Policy("reader", permissions="r")
STANDING = {f"acme/{name}": number for number, name in enumerate("abcd", 1)}


async def test_a_failed_write_changes_nothing(tmp_path: pathlib.Path) -> None:
    """The caller hears of it, memory and file stay as they were."""
    path = tmp_path / "azure.json"
    records = JsonRecords(path, STANDING.get)
    await records.set_policies("acme/a", [POLICY])
    (tmp_path / "azure.json.new").mkdir()
    with pytest.raises(StoreError, match="existing data is safe"):
        await records.set_policies("acme/b", [POLICY])
    assert records.policies("acme/b") == ()
    assert tuple(JsonRecords(path, STANDING.get).policies("acme/a")) == (POLICY,)


@pytest.mark.parametrize("text", ["", "{", '{"policies": 3}', '{"version": 3}'])
async def test_a_file_that_is_not_ours_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "azure.json"
    path.write_text(text)
    with pytest.raises(StoreDamaged, match=r"azure\.json"):
        JsonRecords(path, STANDING.get)
    assert path.read_text() == text


_USING_B = b"<QueueMessage><MessageText>&b;</MessageText></QueueMessage>"
NOW_XML = datetime.datetime(2008, 11, 13, 21, 37, 56, 999000, datetime.UTC)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "InvalidXmlDocument"),
        (b"text", "InvalidXmlDocument"),
        (b"<QueueMessage>", "InvalidXmlDocument"),
        (b"<Other/>", "InvalidXmlDocument"),
        (b"<QueueMessage/>", "MissingRequiredXmlNode"),
        (b"<QueueMessage><MessageText><b/></MessageText></QueueMessage>", "InvalidXmlNodeValue"),
        (b"<QueueMessage><MessageText>\x01</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<QueueMessage><MessageText>&#0;</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<QueueMessage><MessageText>\xff</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<QueueMessage><MessageText>&nbsp;</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<?xml version='1.0' encoding='no-such'?><QueueMessage/>", "InvalidXmlDocument"),
        (b"<!DOCTYPE q><QueueMessage><MessageText>a</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b'<!DOCTYPE q [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;">]>' + _USING_B, "InvalidXmlDocument"),
        (b'<!DOCTYPE q [<!ENTITY b SYSTEM "file:///etc/passwd">]>' + _USING_B, "InvalidXmlDocument"),
        (b"<?pi x?><QueueMessage><MessageText>a</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<QueueMessage><!-- c --><MessageText>a</MessageText></QueueMessage>", "InvalidXmlDocument"),
        (b"<a>" * 9 + b"</a>" * 9, "InvalidXmlDocument"),
        (b"<a>" + b"<b/>" * 600 + b"</a>", "InvalidXmlDocument"),
    ],
)
def test_what_is_no_put(raw: bytes, code: str) -> None:
    """Malformed, of another form, or a trick of the language: no entity is ever looked up or grown."""
    with pytest.raises(AzureError) as refused:
        xml.message_text(raw)
    assert refused.value.code == code


@given(st.binary(max_size=200))
def test_every_body_is_well_formed(body: bytes) -> None:
    """Bytes that XML cannot hold are shown in base64; the answer can be read whatever was put."""
    (element,) = ET.fromstring(xml.peeked([StoredMessage("0" * 16, "", body, 0, NOW_XML, NOW_XML)], ["i"], 1000))
    assert (element.findtext("MessageText") or "") == xml.body_text(body)
