"""Stored access policies belong to a queue, not to its name: they end with it by whatever door it goes."""

from __future__ import annotations

import msgspec
import pytest

from queuebell.bridge.http.azure import cors
from queuebell.bridge.http.azure.cors import CorsRule
from queuebell.bridge.http.azure.errors import AzureError
from queuebell.bridge.http.azure.records import (
    Logging,
    Metrics,
    Policy,
    Retention,
    ServiceProperties,
    parse_policies,
    render_policies,
    render_properties,
    update_properties,
)


def body(*identifiers: str) -> bytes:
    return f"<SignedIdentifiers>{''.join(identifiers)}</SignedIdentifiers>".encode()


def identifier(id_: str = "guest", policy: str = "") -> str:
    return f"<SignedIdentifier><Id>{id_}</Id><AccessPolicy>{policy}</AccessPolicy></SignedIdentifier>"


def test_what_is_read_is_written() -> None:
    """A policy without anything, one without a policy node, and letters in their one order."""
    read = parse_policies(
        body(identifier("a", "<Permission>pr</Permission>"), "<SignedIdentifier><Id>b</Id></SignedIdentifier>")
    )
    assert read == (Policy("a", permissions="rp"), Policy("b"))
    written = render_policies(read)
    assert parse_policies(written) == read
    most = tuple(Policy(str(number) * 64) for number in range(5))
    assert parse_policies(render_policies(most)) == most
    assert written.endswith(b"<Id>b</Id><AccessPolicy></AccessPolicy></SignedIdentifier></SignedIdentifiers>")


KEEP = "<RetentionPolicy><Enabled>true</Enabled><Days>7</Days></RetentionPolicy>"
RULE = (
    "<CorsRule><AllowedOrigins>http://a.example,http://b.example</AllowedOrigins><AllowedMethods>GET,PUT"
    "</AllowedMethods><MaxAgeInSeconds>60</MaxAgeInSeconds><ExposedHeaders>x-ms-meta-a,x-ms-re*</ExposedHeaders>"
    "<AllowedHeaders>x-ms-meta*,Content-Type</AllowedHeaders></CorsRule>"
)
FULL = (
    "<StorageServiceProperties>"
    f"<Logging><Version>1.0</Version><Delete>true</Delete><Read>false</Read><Write>true</Write>{KEEP}</Logging>"
    f"<HourMetrics><Version>1.0</Version><Enabled>true</Enabled><IncludeAPIs>false</IncludeAPIs>{KEEP}</HourMetrics>"
    "<MinuteMetrics><Version>1.0</Version><Enabled>false</Enabled><RetentionPolicy><Enabled>false</Enabled>"
    f"</RetentionPolicy></MinuteMetrics><Cors>{RULE}</Cors></StorageServiceProperties>"
)


def document(*parts: str) -> bytes:
    """Service properties with these elements."""
    return f"<StorageServiceProperties>{''.join(parts)}</StorageServiceProperties>".encode()


def test_properties_are_read_and_given_back() -> None:
    """All that was set comes back, and what comes back can be set."""
    found = update_properties(ServiceProperties(), FULL.encode())
    assert found.logging == Logging(delete=True, write=True, retention=Retention(7))
    assert found.hour == Metrics(enabled=True, include_apis=False, retention=Retention(7))
    assert found.minute == Metrics()
    (rule,) = found.cors
    assert rule.origins == ("http://a.example", "http://b.example")
    assert (rule.methods, rule.max_age_s) == (("GET", "PUT"), 60)
    assert update_properties(ServiceProperties(), render_properties(found)) == found
    assert len(update_properties(ServiceProperties(), document(f"<Cors>{RULE * 5}</Cors>")).cors) == 5
    assert msgspec.json.decode(msgspec.json.encode(found), type=ServiceProperties) == found


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"<Other />", "InvalidXmlDocument"),
        (b"", "InvalidXmlDocument"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><StorageServiceProperties />', "InvalidXmlDocument"),
        (document("<StaticWebsite />"), "UnsupportedXmlNode"),
        (document("<Logging />"), "MissingRequiredXmlNode"),
        (document(f"<Cors>{RULE * 6}</Cors>"), "InvalidXmlDocument"),
        (document(f"<Cors>{RULE.replace('GET,PUT', 'GET,BREW')}</Cors>"), "InvalidXmlNodeValue"),
        (document(f"<Cors>{RULE.replace('>60<', '>-1<')}</Cors>"), "InvalidXmlNodeValue"),
        (document(f"<Cors>{RULE.replace('x-ms-meta-a,', 'a&#xD;&#xA;b: c,')}</Cors>"), "InvalidXmlNodeValue"),
        (document(f"<Cors>{RULE.replace('Content-Type', 'a*,b*')}</Cors>"), "InvalidXmlNodeValue"),
        (document(f"<Cors>{RULE.replace('http://a.example,http://b.example', '')}</Cors>"), "InvalidXmlNodeValue"),
        (FULL.replace("<Days>7", "<Days>366").encode(), "InvalidXmlNodeValue"),
        (FULL.replace("<Days>7</Days>", "").encode(), "MissingRequiredXmlNode"),
        (FULL.replace("1.0", "2.0").encode(), "InvalidXmlNodeValue"),
        (FULL.replace("<Read>false", "<Read>no").encode(), "InvalidXmlNodeValue"),
    ],
)
def test_properties_that_are_wrong(raw: bytes, code: str) -> None:
    with pytest.raises(AzureError) as caught:
        update_properties(ServiceProperties(), raw)
    assert caught.value.code == code


RULES = (
    CorsRule(("http://a.example",), ("GET",), 5, ("x-ms-request-id",), ("x-ms-meta*", "Content-Type")),
    CorsRule(("*",), ("PUT",), 9, ("x-ms-re*", "x-ms-meta-a"), ()),
)


def test_a_preflight_is_answered_by_the_first_rule_that_fits() -> None:
    """Origin, method and every header have to fit one and the same rule."""
    assert cors.preflight(RULES, "http://a.example", "GET", "X-MS-Meta-Any, content-type") == {
        "Access-Control-Allow-Origin": "http://a.example",
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin",
        "Access-Control-Allow-Methods": "GET",
        "Access-Control-Allow-Headers": "X-MS-Meta-Any,content-type",
        "Access-Control-Max-Age": "5",
    }
    assert cors.preflight(RULES, "http://z.example", "PUT", "") == {
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Methods": "PUT",
        "Access-Control-Max-Age": "9",
    }


@pytest.mark.parametrize(
    ("origin", "method", "headers"),
    [
        ("http://A.example", "GET", ""),
        ("http://z.example", "GET", ""),
        ("http://a.example", "DELETE", ""),
        ("http://a.example", "GET", "x-other"),
        ("http://a.example", "PUT", "x-ms-meta-a"),
        ("http://a.example", "GET", "x-ms-meta\u20ac"),
        ("http://a.example", "GET", "x-ms-meta a"),
    ],
)
def test_a_preflight_that_fits_no_rule_fails(origin: str, method: str, headers: str) -> None:
    with pytest.raises(AzureError, match="CorsPreflightFailure") as caught:
        cors.preflight(RULES, origin, method, headers)
    assert caught.value.status == 403


def test_an_answer_tells_the_page_what_it_may_read() -> None:
    """A star at the end stands for the headers of this service that begin so."""
    assert cors.actual(RULES, "http://a.example", "GET") == {
        "Access-Control-Allow-Origin": "http://a.example",
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin",
        "Access-Control-Expose-Headers": "x-ms-request-id",
    }
    assert cors.actual(RULES, "http://z.example", "PUT") == {
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Expose-Headers": "x-ms-request-id,x-ms-meta-a",
    }
    assert cors.actual(RULES, "http://z.example", "GET") is None


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"<Other />", "InvalidXmlDocument"),
        (body(*(identifier(str(number)) for number in range(6))), "InvalidXmlDocument"),
        (body("<SignedIdentifier />"), "MissingRequiredXmlNode"),
        (body("<Other />"), "UnsupportedXmlNode"),
        (body(identifier("a"), identifier("a")), "InvalidXmlNodeValue"),
        (body(identifier("a" * 65)), "InvalidXmlNodeValue"),
        (body(identifier("")), "InvalidXmlNodeValue"),
        (body(identifier("a", "<Permission>rx</Permission>")), "InvalidXmlNodeValue"),
        (body(identifier("a", "<Expiry>soon</Expiry>")), "InvalidXmlNodeValue"),
        (body(identifier("a", "<Expiry>2026-02-30</Expiry>")), "InvalidXmlNodeValue"),
    ],
)
def test_policies_that_are_wrong(raw: bytes, code: str) -> None:
    """Each fault has the service's code; five is the most."""
    with pytest.raises(AzureError) as caught:
        parse_policies(raw)
    assert caught.value.code == code
