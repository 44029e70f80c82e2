"""The rules of a sign-in for the page: what is sent to the issuer, and what of its answers is believed."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from bridge.contract.errors import ConfigurationError
from bridge.core.issuer import IssuerSettings
from bridge.core.login import (
    CHANCE_BYTES,
    Provider,
    begin,
    check,
    exchange,
    nonce_of,
    provider_of,
    wrong,
    wrong_sender,
)

ISSUER = "https://id.example/realms/staff"
PAGE = "https://bridge.internal/"
SETTINGS = IssuerSettings(
    issuer=ISSUER, audience="programs", jwks=f"{ISSUER}/keys", client_id="page", redirect_uri=PAGE,
    scopes=("openid", "profile"),
)  # fmt: skip
PUBLISHED = {"issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/auth", "token_endpoint": f"{ISSUER}/token"}
PROVIDER = provider_of(json.dumps(PUBLISHED).encode(), SETTINGS)
CHANCE = bytes(range(CHANCE_BYTES))


def test_what_the_browser_takes_to_the_issuer() -> None:
    """The code flow with the hash of the verifier; the verifier itself stays in the tab."""
    begun = begin(SETTINGS, PROVIDER, CHANCE)
    assert (begun.issuer, begun.page) == (ISSUER, PAGE)
    assert begun.address.startswith(f"{ISSUER}/auth?")
    query = {name: value for name, (value,) in parse_qs(urlsplit(begun.address).query).items()}
    challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=").decode()
    assert query == {
        "response_type": "code",
        "client_id": "page",
        "redirect_uri": PAGE,
        "scope": "openid profile",
        "state": begun.state,
        "nonce": nonce_of(begun.verifier),
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    assert begun.verifier not in begun.address and nonce_of(begun.verifier) != challenge
    # RFC 7636 4.1: 43 characters at least; both of 256 bits, and of different ones.
    assert len(begun.verifier) == len(begun.state) == 43
    assert begun.verifier != begun.state
    other = msgspec.structs.replace(PROVIDER, authorization_endpoint=f"{ISSUER}/auth?tenant=1")
    assert begin(SETTINGS, other, CHANCE).address.startswith(f"{ISSUER}/auth?tenant=1&response_type=code&")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"redirect_uri": ""}, "redirect_uri is the page's address"),
        ({"redirect_uri": "http://bridge.internal/"}, "redirect_uri is the page's address"),
        ({"redirect_uri": "https://bridge.internal"}, "redirect_uri is the page's address"),
        ({"redirect_uri": "https://bridge.internal/page"}, "redirect_uri is the page's address"),
        ({"redirect_uri": "https://bridge.internal/?a=b"}, "redirect_uri is the page's address"),
        ({"redirect_uri": "https://bridge.internal/#a"}, "redirect_uri is the page's address"),
        ({"redirect_uri": "https://[/"}, "redirect_uri is the page's address"),
        ({"issuer": "http://id.example"}, "an https:// address"),
        ({"issuer": "accounts.example"}, "an https:// address"),
        ({"scopes": ("profile",)}, "openid has to be among them"),
        ({"client_secret_file": "a", "client_secret_env": "A"}, "one of client_secret_file and client_secret_env"),
        ({"client_id": ""}, "redirect_uri is for signing in at the page"),
        ({"client_id": "", "redirect_uri": "", "client_secret_env": "A"}, "client_secret_env is for signing in"),
        ({"client_id": "", "redirect_uri": "", "client_secret_file": "a"}, "client_secret_file is for signing in"),
    ],
)
def test_a_table_that_cannot_be_meant(changed: dict[str, Any], words: str) -> None:
    """Is refused, with the key that is wrong."""
    check(SETTINGS)
    check(msgspec.structs.replace(SETTINGS, redirect_uri="http://127.0.0.1:8470/"))
    check(msgspec.structs.replace(SETTINGS, client_id="", redirect_uri=""))
    with pytest.raises(ConfigurationError, match=words):
        check(msgspec.structs.replace(SETTINGS, **changed))


@pytest.mark.parametrize(
    ("published", "words"),
    [
        ({"issuer": f"{ISSUER}/"}, "another issuer"),
        ({"issuer": "https://id.example/realms/others"}, "another issuer"),
        ({"authorization_endpoint": "http://id.example/auth"}, "authorization_endpoint is no https"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint is no https"),
        ({"token_endpoint": "http://id.example/token"}, "token_endpoint is no https"),
        ({"token_endpoint": "file:///etc/passwd"}, "token_endpoint is no https"),
        ({"token_endpoint": 5}, "no description of an issuer"),
    ],
)
def test_a_description_that_cannot_be_used(published: dict[str, Any], words: str) -> None:
    """Of another issuer, or one that would have secrets go in the clear."""
    with pytest.raises(ConfigurationError, match=words):
        provider_of(json.dumps({**PUBLISHED, **published}).encode(), SETTINGS)


@pytest.mark.parametrize("raw", [b"", b"<html>", b"[]", b"\xff", b"[" * 100_000, b'{"issuer":"\xff"}'])
def test_what_is_no_description(raw: bytes) -> None:
    """Is said to be none, whatever it is."""
    with pytest.raises(ConfigurationError, match="no description of an issuer"):
        provider_of(raw, SETTINGS)


def test_how_the_bridge_proves_itself() -> None:
    """A public client by its verifier alone; one with a secret by Basic (RFC 6749 2.3.1), or, if asked, in the form."""
    form = {"grant_type": "authorization_code", "code": "c", "redirect_uri": PAGE, "code_verifier": "v"}
    assert exchange(SETTINGS, PROVIDER, None, "c", "v") == ({**form, "client_id": "page"}, {})
    settings = msgspec.structs.replace(SETTINGS, client_id="the page")
    basic = base64.b64encode(b"the+page:a%3Ab%2B%C3%A9").decode()
    assert exchange(settings, PROVIDER, "a:b+é", "c", "v") == (form, {"Authorization": f"Basic {basic}"})
    both = msgspec.structs.replace(
        PROVIDER, token_endpoint_auth_methods_supported=("client_secret_post", "client_secret_basic")
    )
    assert exchange(settings, both, "a:b+é", "c", "v") == (form, {"Authorization": f"Basic {basic}"})
    post = msgspec.structs.replace(PROVIDER, token_endpoint_auth_methods_supported=("client_secret_post",))
    assert exchange(SETTINGS, post, "s", "c", "v") == ({**form, "client_id": "page", "client_secret": "s"}, {})


def test_who_sent_the_browser_back() -> None:
    """The issuer of the sign-in; where it says that it always names itself, silence is somebody else's (mix-up)."""
    names = msgspec.structs.replace(PROVIDER, authorization_response_iss_parameter_supported=True)
    said = ((ISSUER, False, False), (None, False, True), ("https://evil.example", True, True), ("", True, True))
    for sender, wrong_here, wrong_there in said:
        assert wrong_sender(SETTINGS, PROVIDER, sender) is wrong_here
        assert wrong_sender(SETTINGS, names, sender) is wrong_there


@pytest.mark.parametrize(
    ("changed", "claim"),
    [
        ({}, ""),
        ({"aud": ["page", "other"], "azp": "page"}, ""),
        ({"aud": "programs"}, "aud"),
        ({"aud": ["other"]}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": ["page", "other"], "azp": "other"}, "azp"),
        ({"iss": "https://evil.example"}, "iss"),
        ({"nonce": nonce_of("another verifier")}, "nonce"),
        ({"nonce": None}, "nonce"),
    ],
)
def test_a_token_of_another_sign_in(changed: dict[str, Any], claim: str) -> None:
    """Is known by the claim that is another's."""
    claims = {"iss": ISSUER, "aud": "page", "nonce": nonce_of("v"), **changed}
    assert wrong(claims, SETTINGS, "v") == claim


def test_what_is_believed_unless_said() -> None:
    """Basic, and that the issuer does not name itself (Discovery 3, RFC 9207 3)."""
    assert Provider(ISSUER, f"{ISSUER}/auth", f"{ISSUER}/token", ("client_secret_basic",), False) == PROVIDER
