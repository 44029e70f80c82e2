"""API keys: made of chance, kept as a hash, ended by a date or by being taken off the list."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuebell.bridge.access import quota_guard
from queuebell.bridge.access.broker_grants import ANY, BRIDGE_USER, BrokerUser, Topic, broker_users
from queuebell.bridge.access.grants import Principal, Reach, Verb
from queuebell.bridge.access.issuer import COOLDOWN_S, FRESH_S, LEEWAY_S, IssuerSettings, KeySet, expires, mistimed
from queuebell.bridge.access.keys import Access, AccessList, Certificate, Key, new_key, with_terms, without
from queuebell.bridge.access.limits import NO_LIMITS, Limits
from queuebell.bridge.access.sign_in import (
    CHANCE_BYTES,
    begin,
    check,
    exchange,
    nonce_of,
    provider_of,
    wrong,
)
from queuebell.bridge.contract.errors import ConfigurationError
from tests.support.access import NOW, listed, secret_of

LISTED, SECRETS = listed({"worker": {"take": ["a/*"]}, "producer": {"put": ["a/x"]}})


def test_a_key_expires_at_its_moment() -> None:
    found, secrets = listed({"p": {"look": ["*"]}}, expires_at=NOW + 10)
    access = Access(found)
    before = access.identify(secrets["p"], NOW + 9.999)
    assert before is not None
    assert access.identify(secrets["p"], NOW + 10) is None
    assert access.again(before, NOW + 10) is None
    assert access.again(before, NOW + 9) == before


def test_revoking_by_name_ends_all_keys() -> None:
    made, _ = new_key(LISTED, "worker", {}, chance=secret_of(9), now=NOW)
    left, gone = without(made, "worker")
    assert len(gone) == 2
    assert [key.principal for key in left.keys] == ["producer"]
    for nobody in ("wroker", "", made.keys[0].sha256):
        with pytest.raises(ConfigurationError, match="no key has the id"):
            without(made, nobody)


def test_a_key_that_could_do_nothing_is_not_made() -> None:
    with pytest.raises(ConfigurationError, match="it has no grants yet"):
        new_key(LISTED, "new", {}, chance=secret_of(9), now=NOW)
    with pytest.raises(ConfigurationError, match="unknown verb"):
        new_key(LISTED, "new", {"receive": ["*"]}, chance=secret_of(9), now=NOW)
    with pytest.raises(ConfigurationError, match="twice"):
        new_key(LISTED, "worker", {}, chance=secret_of(0), now=NOW)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "this release reads version 1"),
        ({"principals": {}}, "belongs to 'worker', but there is no principal of that name"),
        ({"keys": [Key(principal="worker", sha256="A" * 64, created_at=0.0)]}, "64 lowercase hexadecimal digits"),
        ({"keys": [Key(principal="worker", sha256="a" * 63, created_at=0.0)]}, "64 lowercase hexadecimal digits"),
        ({"keys": [LISTED.keys[0], LISTED.keys[0]]}, "is listed twice"),
        ({"principals": {"worker": {"fly": ["*"]}, "producer": {}}}, "unknown verb 'fly'"),
        ({"limits": {"wroker": Limits(queues=1)}}, "^limits: they are for 'wroker'"),
        ({"certificates": {"wroker": ["DNS:x"]}}, "^certificates: they are for 'wroker'"),
    ],
)
def test_a_list_that_is_wrong_is_refused_whole(change: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Access(msgspec.structs.replace(LISTED, **change))


def test_a_principal_has_the_limits_of_its_name() -> None:
    few = Limits(requests_per_second=1.0)
    access = Access(msgspec.structs.replace(LISTED, limits={"worker": few}))
    limits = {name: found.limits if (found := access.principal(name)) else None for name in ("worker", "producer", "x")}
    assert limits == {"worker": few, "producer": NO_LIMITS, "x": None}
    by_key, by_token = access.identify(SECRETS["worker"], NOW), access.named("worker", NOW + 1, NOW)
    assert by_key is not None
    assert by_token is not None
    assert by_key.principal is by_token.principal is access.principal("worker")


def test_the_same_somebody_of_another_list() -> None:
    found = Access(LISTED).named("producer", NOW + 5, NOW)
    assert found is not None
    less, _ = new_key(LISTED, "producer", {"look": ["*"]}, chance=secret_of(9), now=NOW)
    again = Access(less).again(found, NOW + 1)
    assert again is not None
    assert (again.key, again.until) == (None, NOW + 5)
    assert [again.principal.may(verb, "a/x") for verb in (Verb.PUT, Verb.LOOK)] == [False, True]
    assert Access(less).again(found, NOW + 5) is None
    assert Access(AccessList()).again(found, NOW) is None


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
        ({"redirect_uri": ""}, "redirect_uri must be the page's address"),
        ({"redirect_uri": "http://bridge.internal/"}, "redirect_uri must be the page's address"),
        ({"redirect_uri": "https://bridge.internal"}, "redirect_uri must be the page's address"),
        ({"redirect_uri": "https://bridge.internal/page"}, "redirect_uri must be the page's address"),
        ({"redirect_uri": "https://bridge.internal/?a=b"}, "redirect_uri must be the page's address"),
        ({"redirect_uri": "https://bridge.internal/#a"}, "redirect_uri must be the page's address"),
        ({"redirect_uri": "https://[/"}, "redirect_uri must be the page's address"),
        ({"issuer": "http://id.example"}, "an https:// address"),
        ({"issuer": "accounts.example"}, "an https:// address"),
        ({"scopes": ("profile",)}, "must include openid"),
        (
            {"client_secret_file": "a", "client_secret_env": "A"},
            "set only one of client_secret_file and client_secret_env",
        ),
        ({"client_id": ""}, "redirect_uri is for sign-in at the page"),
        ({"client_id": "", "redirect_uri": "", "client_secret_env": "A"}, "client_secret_env is for sign-in"),
        ({"client_id": "", "redirect_uri": "", "client_secret_file": "a"}, "client_secret_file is for sign-in"),
    ],
)
def test_a_table_that_cannot_be_meant(changed: dict[str, Any], words: str) -> None:
    check(SETTINGS)
    check(msgspec.structs.replace(SETTINGS, redirect_uri="http://127.0.0.1:8470/"))
    check(msgspec.structs.replace(SETTINGS, client_id="", redirect_uri=""))
    with pytest.raises(ConfigurationError, match=words):
        check(msgspec.structs.replace(SETTINGS, **changed))


@pytest.mark.parametrize(
    ("published", "words"),
    [
        ({"issuer": f"{ISSUER}/"}, "its issuer is not exactly the configured one"),
        ({"issuer": "https://id.example/realms/others"}, "its issuer is not exactly the configured one"),
        ({"authorization_endpoint": "http://id.example/auth"}, "authorization_endpoint is not an https"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint is not an https"),
        ({"token_endpoint": "http://id.example/token"}, "token_endpoint is not an https"),
        ({"token_endpoint": "file:///etc/passwd"}, "token_endpoint is not an https"),
        ({"token_endpoint": 5}, "not an issuer's metadata"),
    ],
)
def test_a_description_that_cannot_be_used(published: dict[str, Any], words: str) -> None:
    """Of another issuer, or one that would have secrets go in the clear."""
    with pytest.raises(ConfigurationError, match=words):
        provider_of(json.dumps({**PUBLISHED, **published}).encode(), SETTINGS)


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
    claims = {"iss": ISSUER, "aud": "page", "nonce": nonce_of("v"), **changed}
    assert wrong(claims, SETTINGS, "v") == claim


NOW_JWKS = 1_700_000_000.0


def test_the_last_good_keys_hold_while_fetches_fail() -> None:
    """A fetch that fails is tried again after the cooldown, and takes nothing away."""
    keys: KeySet[str] = KeySet()
    assert keys.wants("a", NOW_JWKS)
    keys.got({"a": "A"}, NOW_JWKS)
    late = NOW_JWKS + 10 * FRESH_S
    assert keys.wants("a", late)
    assert keys.find("a") == "A"
    assert not keys.wants("a", late + COOLDOWN_S - 0.001)
    assert keys.wants("a", late + COOLDOWN_S)


def test_a_clock_that_goes_back_does_not_stop_fetches() -> None:
    """An hour back: what was tried in what is now the future counts as not tried."""
    keys: KeySet[str] = KeySet()
    assert keys.wants("a", NOW_JWKS)
    assert not keys.wants("a", NOW_JWKS)
    assert keys.wants("a", NOW_JWKS - 3600)
    keys.got({"a": "A"}, NOW_JWKS)
    assert keys.wants("a", NOW_JWKS - 3600 - 1)


@pytest.mark.parametrize(
    ("claims", "until"),
    [
        ({"exp": NOW_JWKS + 10}, NOW_JWKS + 10 + LEEWAY_S),
        ({"exp": NOW_JWKS - LEEWAY_S + 1}, NOW_JWKS + 1),
        ({"exp": NOW_JWKS - LEEWAY_S}, None),
        ({}, None),
        ({"exp": None}, None),
        ({"exp": str(NOW_JWKS)}, None),
        ({"exp": True}, None),
        ({"exp": math.nan}, None),
        ({"exp": math.inf}, None),
        ({"exp": 1e15}, None),
        ({"exp": int(NOW_JWKS) + 10, "nbf": NOW_JWKS + LEEWAY_S}, int(NOW_JWKS) + 10 + LEEWAY_S),
        ({"exp": NOW_JWKS + 1000, "nbf": NOW_JWKS + LEEWAY_S + 1}, None),
        ({"exp": NOW_JWKS + 1000, "iat": NOW_JWKS + LEEWAY_S + 1}, None),
        ({"exp": NOW_JWKS + 1000, "iat": NOW_JWKS + LEEWAY_S}, NOW_JWKS + 1000 + LEEWAY_S),
        ({"exp": NOW_JWKS + 1000, "nbf": "0"}, None),
        ({"exp": NOW_JWKS + 1000, "nbf": -1e15}, None),
        ({"exp": NOW_JWKS + 1000, "nbf": -1e15 + 1}, NOW_JWKS + 1000 + LEEWAY_S),
        ({"exp": NOW_JWKS + 1000, "iat": False}, None),
        ({"exp": NOW_JWKS + 1000, "iat": None, "nbf": None}, NOW_JWKS + 1000 + LEEWAY_S),
    ],
)
def test_the_times_of_a_token(claims: dict[str, Any], until: float | None) -> None:
    """It has to end, it may not be from the future, and clocks may be a minute apart."""
    assert expires(claims, NOW_JWKS) == until


@given(
    st.dictionaries(st.sampled_from(["exp", "nbf", "iat"]), st.floats() | st.integers() | st.none() | st.text()),
    st.floats(-1e9, 1e9),
)
def test_what_is_said_of_times_is_said_of_times_alone(claims: dict[str, Any], now: float) -> None:
    """Words only where the times prove nothing, and always where they are times: never what came."""
    words = mistimed(claims, now)
    assert not words or expires(claims, now) is None
    assert '"' not in words and words.isprintable() and words.isascii()
    if all(isinstance(each, float) and abs(each) < 1e12 for each in claims.values()) and "exp" in claims:
        assert bool(words) == (expires(claims, now) is None)


PATTERNS = ["*", "a/*", "b/*", "a/orders", "a/x", "b/x", "a/orders:2", "b/boxes:3"]
QUEUES = ["a/orders", "a/x", "b/x", "b/y", "c/x", "a/orders-p0", "a/orders-p1", "a/orders-p2", "b/boxes-p2"]
grants = st.dictionaries(
    st.sampled_from([verb.value for verb in Verb if verb is not Verb.OPERATE]),
    st.lists(st.sampled_from(PATTERNS), max_size=4),
)


def covered(granted: tuple[Topic, ...], topic: Topic) -> int:
    """By how many of the topics that are granted this one is covered."""
    return sum(
        len(each) == len(topic) and all(a in (ANY, b) for a, b in zip(each, topic, strict=True)) for each in granted
    )


@given(grants)
@example({"ring": ["a/orders:2", "a/*"], "look": ["*", "a/x"]})
def test_a_topic_is_granted_where_the_verb_is(given_grants: dict[str, list[str]]) -> None:
    principal = Principal("one", given_grants)
    users = {user.name: user for user in broker_users(AccessList(principals={"one": given_grants}), "site7")}
    user = users.get("one", BrokerUser("one", (), ()))
    for granted in (user.publish, user.subscribe):
        assert covered(granted, ("site7", "echo", "1" * 32)) == ("one" in users)
    takes = principal.may(Verb.TAKE)
    for queue in QUEUES:
        names = tuple(queue.split("/"))
        assert covered(user.publish, ("site7", "trigger", *names)) == principal.may(Verb.RING, queue)
        assert covered(user.subscribe, ("site7", "wake", *names)) == principal.may(Verb.LOOK, queue)
        assert not covered(user.publish, ("site7", "wake", *names))
        assert not covered(user.subscribe, ("site7", "trigger", *names))
    for frame, spoken, heard in (
        (("site7", "hello"), takes, False),
        (("site7", "session", "1" * 32, "up"), takes, False),
        (("site7", "session", "1" * 32, "down"), False, takes),
    ):
        assert covered(user.publish, frame) == spoken
        assert covered(user.subscribe, frame) == heard
    assert ("one" in users) is any(principal.may(verb) for verb in (Verb.RING, Verb.TAKE, Verb.LOOK))


def test_the_bridge_hears_what_it_serves_and_no_more() -> None:
    """It is the first user, whoever else there is; no principal may be called so."""
    (bridge,) = broker_users(AccessList(), "q")
    assert bridge.name == BRIDGE_USER == "queuebell-bridge"
    ring, echo = ("q", "trigger", ANY, ANY), ("q", "echo", ANY)
    assert set(bridge.publish) == {("q", "session", ANY, "down"), ("q", "wake", ANY, ANY), ring, echo}
    assert set(bridge.subscribe) == {("q", "hello"), ("q", "session", ANY, "up"), ring, echo}
    (member,) = broker_users(AccessList(), "q", cluster=True)
    assert set(member.publish) - set(bridge.publish) == {("q", "cluster", ANY)}
    assert set(member.subscribe) - set(bridge.subscribe) == {("q", "cluster", ANY)}
    with pytest.raises(ConfigurationError, match="give this principal another name"):
        broker_users(AccessList(principals={BRIDGE_USER: {"put": ["*"]}}), "q")


def test_certificates_are_added_to_those_there() -> None:
    first = with_terms(LISTED, "worker", {}, limits={}, certificates=["DNS:one.internal"])
    both = with_terms(first, "worker", {}, limits={}, certificates=["DNS:two.internal", "DNS:one.internal"])
    assert both.certificates == {"worker": ["DNS:one.internal", "DNS:two.internal"]}
    assert with_terms(both, "worker", {"look": ["*"]}, limits={}).certificates == both.certificates
    certificate = Certificate(frozenset({"DNS:two.internal"}), NOW + 60.0)
    identity = Access(both).certified(certificate, NOW)
    assert identity is not None and (identity.principal.name, identity.until) == ("worker", NOW + 60.0)


_NAMES = [f"{account}/{queue}" for account in ("a", "a-b", "ab", "b") for queue in ("x", "x-poison", "y")]


@given(
    patterns=st.lists(st.sampled_from([*_NAMES, "a/*", "a-b/*", "b/*", "c/q", "*"]), max_size=5),
    prefix=st.sampled_from(["", "a", "a/", "a/x", "a-b/y", "c"]),
    count=st.integers(1, 4),
    odd=st.booleans(),
)
async def test_a_listing_has_each_queue_that_is_granted_once(
    patterns: list[str], prefix: str, count: int, odd: bool
) -> None:
    """Page by page, in order, whatever the grants; a name that is granted and does not exist is not listed."""
    reach, there = Reach(patterns), sorted(_NAMES)

    async def read(prefix: str, after: str, limit: int) -> list[tuple[str, dict[str, str]]]:
        return [(name, {}) for name in there if name.startswith(prefix) and name > after][:limit]

    fits = (lambda name: name.endswith("y")) if odd else None
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        rows, after = await quota_guard.listed(read, reach, prefix, after, count, fits)
        assert len(rows) <= count
        found += [name for name, _ in rows]
    wanted = [name for name in there if reach.covers(name) and name.startswith(prefix)]
    assert found == [name for name in wanted if fits is None or fits(name)]
