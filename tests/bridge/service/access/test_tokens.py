"""Tokens of a trusted issuer: which prove something, and every way in which one does not (S33)."""

from __future__ import annotations

import asyncio
import base64
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from bridge.contract.errors import ChannelLost, ConfigurationError
from bridge.core.issuer import IssuerSettings
from bridge.core.jwks import COOLDOWN_S, FRESH_S, LEEWAY_S, Mistimed
from bridge.observe.logs import FactLog
from bridge.service.access import access_file
from bridge.service.access.tokens import Tokens, Verified
from bridge.service.access.watch import AccessWatch
from listeners.session.channels.websocket import WebSocketChannel
from tests.support.access import listed
from tests.support.web import serving

NOW = 1_700_000_000.0
ISSUER, AUDIENCE = "https://id.example/", "queuebell"
RSA_KEY = rsa.generate_private_key(65537, 2048)
WEAK_KEY = rsa.generate_private_key(65537, 1024)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_EC_KEY = ec.generate_private_key(ec.SECP384R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
STRANGER = ec.generate_private_key(ec.SECP256R1())
SIGN: dict[str, tuple[str, Any]] = {"RS256": ("r", RSA_KEY), "ES256": ("e", EC_KEY), "EdDSA": ("d", ED_KEY)}


def public(key: Any, kid: str, **more: str) -> dict[str, Any]:
    """A public key as an issuer publishes it."""
    kinds = ((rsa.RSAPrivateKey, RSAAlgorithm), (ec.EllipticCurvePrivateKey, ECAlgorithm), (object, OKPAlgorithm))
    algorithm = next(algorithm for kind, algorithm in kinds if isinstance(key, kind))
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, **more}


KEYS = [public(RSA_KEY, "r", use="sig", alg="RS256"), public(EC_KEY, "e"), public(ED_KEY, "d")]


def token(algorithm: str = "ES256", key: Any = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A token that is good but for what is said; a claim of None is left out."""
    kid, own = SIGN.get(algorithm, ("e", EC_KEY))
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "worker", "exp": NOW + 600, **claims}
    return jwt.encode(
        {name: value for name, value in said.items() if value is not None},
        own if key is None else key,
        algorithm,
        {"kid": kid, **(header or {})},
    )


def checked(tmp_path: pathlib.Path, given_token: str, keys: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    """What one token proves, to a bridge that has these keys in a file."""
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": KEYS if keys is None else keys}))
    issuer = IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=str(file), **more)
    return asyncio.run(Tokens([issuer], lambda: NOW).verify(given_token))


@pytest.mark.parametrize("algorithm", SIGN)
def test_a_good_token_of_each_algorithm(tmp_path: pathlib.Path, algorithm: str) -> None:
    """Names its principal until it ends, and the minute by which clocks may differ."""
    assert checked(tmp_path, token(algorithm)) == Verified("worker", NOW + 600 + LEEWAY_S)
    assert checked(tmp_path, token(algorithm), algorithms=(algorithm,)) is not None
    others = tuple(each for each in SIGN if each != algorithm)
    assert checked(tmp_path, token(algorithm), algorithms=others) is None


def hs_with_public_key() -> str:
    """The oldest trick: a public key taken for a shared secret. PyJWT refuses to make one, so it is made by hand."""
    pem = EC_KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    import hashlib
    import hmac

    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in (
            {"alg": "HS256", "kid": "e"},
            {"iss": ISSUER, "aud": AUDIENCE, "sub": "worker", "exp": NOW + 600},
        )
    ]
    signed = b".".join(parts)
    return (signed + b"." + base64.urlsafe_b64encode(hmac.digest(pem, signed, hashlib.sha256)).rstrip(b"=")).decode()


def part(raw: bytes) -> str:
    """A part of a token, of bytes that need not be JSON."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


BAD: dict[str, Callable[[], str]] = {
    "signed by a stranger": lambda: token(key=STRANGER),
    "no algorithm": lambda: token("none", key=""),
    "HS256": lambda: token("HS256", key="x" * 32),
    "HS256 with the public key": hs_with_public_key,
    "another algorithm's key": lambda: token("ES256", header={"kid": "r"}),
    "an unknown key": lambda: token(header={"kid": "x"}),
    "a critical extension": lambda: token(header={"crit": ["exp"], "exp": 1}),
    "another issuer": lambda: token(iss="https://id.example"),
    "no issuer": lambda: token(iss=None),
    "issuers": lambda: token(iss=ISSUER + " "),
    "another audience": lambda: token(aud="other"),
    "no audience": lambda: token(aud=None),
    "other audiences": lambda: token(aud=["other", "queuebell2"]),
    "never ends": lambda: token(exp=None),
    "no subject": lambda: token(sub=None),
    "empty": lambda: "",
    "no token": lambda: "a.b.c",
    "two parts": lambda: token().rpartition(".")[0],
    "a part more": lambda: token() + ".e30",
    "too long": lambda: token(more="x" * 9000),
    "spoilt": lambda: token()[:-5] + "AAAAA",
    "no text": lambda: "\udcff" + token(),
    "nested": lambda: part(b"[" * 4000) + ".e30.AA",
    "nested claims": lambda: part(b'{"alg":"ES256","kid":"e"}') + "." + part(b'{"iss":' + b"[" * 4000) + ".AA",
    "a kid that is no text": lambda: part(b'{"alg":"ES256","kid":["e"]}') + "." + token().partition(".")[2],
    "an algorithm that is no text": lambda: part(b'{"alg":["ES256"],"kid":"e"}') + "." + token().partition(".")[2],
    "another's, and expired": lambda: token(key=STRANGER, exp=NOW - 3600),
    "for somebody else, and expired": lambda: token(aud="other", exp=NOW - 3600),
}


@pytest.mark.parametrize("name", BAD)
def test_a_token_that_proves_nothing(tmp_path: pathlib.Path, name: str) -> None:
    """Each is refused alike, without an error of ours."""
    assert checked(tmp_path, BAD[name]()) is None


OFF = {
    "expired": ({"exp": NOW - 3600}, "ended 3600 s ago"),
    "at its end": ({"exp": NOW - LEEWAY_S}, "ended 60 s ago"),
    "not yet": ({"nbf": NOW + 3600, "exp": NOW + 7200}, "begins (nbf) in 3600 s only"),
    "from the future": ({"iat": NOW + 3600, "exp": NOW + 7200}, "begins (iat) in 3600 s only"),
}


@pytest.mark.parametrize("name", OFF)
async def test_a_clock_that_is_an_hour_off(tmp_path: pathlib.Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The refusal says by how much and whose clock it may be, to who holds a good token; so do log and listener."""
    claims, words = OFF[name]
    file, path = tmp_path / "jwks.json", tmp_path / "access.json"
    file.write_text(json.dumps({"keys": KEYS}))
    access_file.change(path, lambda _: listed({"worker": {"look": ["*"], "take": ["*"]}})[0])
    issuer = IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=str(file))
    given_token = token(**claims)
    async with AccessWatch(path, issuers=[issuer], wall=lambda: NOW) as watch, serving(access=watch) as served:
        served.bridge.observe(FactLog())
        answer = await served.ask("GET", "/v1/queues", Authorization=f"Bearer {given_token}")
        assert answer.code == "unauthenticated"
        detail = answer.json["detail"]
        assert words in detail and "clocks may be 60 s apart" in detail and "set the clock that is wrong" in detail
        assert f'error="invalid_token", error_description="{detail}"' in answer.headers["www-authenticate"]
        assert [record.why for record in caplog.records if hasattr(record, "why")] == [detail]
        channel = WebSocketChannel(served.server.url, api_key=given_token)
        with pytest.raises(ChannelLost) as lost:
            await channel.connect()
        await channel.close()
        assert detail in str(lost.value)
        for stranger in (token(key=STRANGER, **claims), token(aud="other", **claims)):
            answer = await served.ask("GET", "/v1/queues", Authorization=f"Bearer {stranger}")
            assert answer.json["detail"] == "the key is not known here, was revoked, or has expired"
        assert given_token not in caplog.text


def test_addresses_within_a_token_are_not_asked(tmp_path: pathlib.Path) -> None:
    """`jku`, `x5u` and an own `jwk` change nothing: the key is the one of the settings, or none."""
    told = {"jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/", "jwk": public(STRANGER, "e")}
    assert checked(tmp_path, token(header=told)) == Verified("worker", NOW + 600 + LEEWAY_S)
    assert checked(tmp_path, token(key=STRANGER, header=told)) is None


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [{"kty": "oct", "k": "c2VjcmV0", "kid": "e"}],
        [public(EC_KEY, "e", use="enc")],
        [public(EC_KEY, "e", alg="ES384")],
        [public(OTHER_EC_KEY, "e")],
        [public(WEAK_KEY, "e")],
    ],
)
def test_keys_that_sign_nothing(tmp_path: pathlib.Path, keys: list[dict[str, Any]]) -> None:
    """Shared secrets, keys for encryption, of another algorithm, or too short: as if they were not there."""
    assert checked(tmp_path, token(), keys) is None


def test_another_claim_names_the_principal(tmp_path: pathlib.Path) -> None:
    """As it stands there; a list is no name."""
    assert checked(tmp_path, token(client_id="w2", sub=None), claim="client_id").principal == "w2"
    assert checked(tmp_path, token(client_id=["w2"]), claim="client_id") is None


SPOILT: list[Any] = [
    5,
    {},
    {"kty": "RSA", "kid": "e"},
    {"kty": "RSA", "n": "AQ", "e": "", "kid": "e"},
    {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "e"},
    {"kty": "EC", "crv": "P-256", "x": 5, "y": None, "kid": "e"},
    {"kty": "OKP", "crv": "Ed25519", "x": "AA", "kid": "e"},
    {"kty": "RSA", "kid": 5},
    {"kty": "of tomorrow", "kid": "e"},
]


@pytest.mark.parametrize("spoilt", SPOILT, ids=json.dumps)
def test_a_spoilt_key_takes_no_other_away(tmp_path: pathlib.Path, spoilt: Any) -> None:
    """An issuer may publish one of a kind to come, or a faulty one, beside those that are in use (RFC 7517 5)."""
    assert (
        checked(tmp_path, token(), [spoilt, *KEYS, {**spoilt, "kid": "s"} if isinstance(spoilt, dict) else 5])
        is not None
    )


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200) | st.text("abc.-_=eyJ0", max_size=200))
def test_any_text_is_no_token_and_no_error(text: str) -> None:
    """Whatever a stranger sends."""
    issuer = IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks="/nowhere")
    assert asyncio.run(Tokens([issuer], lambda: NOW).verify(text)) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
CLAIMS = st.dictionaries(
    st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "jti", "crit"]),
    JSON | st.sampled_from([ISSUER, AUDIENCE, [AUDIENCE], "worker", NOW, NOW + 60, NOW + 3600, int(NOW) - 3600]),
    max_size=8,
)
HEADERS = st.dictionaries(
    st.sampled_from(["kid", "alg", "crit", "b64", "jwk", "jku", "typ", "zip", "enc"]),
    JSON | st.sampled_from(["e", "r", "ES256", "RS256", "none", "HS256", True, public(STRANGER, "e")]),
    max_size=4,
)


def signed(header: Any, claims: Any, key: Any = EC_KEY) -> str:
    """A token with a good signature over whatever it says: PyJWT itself would not make most of these."""
    text = part(json.dumps(header).encode()) + "." + part(json.dumps(claims).encode())
    return text + "." + part(ECAlgorithm(ECAlgorithm.SHA256).sign(text.encode(), key))


@settings(max_examples=100)
@given(HEADERS, CLAIMS, st.booleans(), st.sampled_from([EC_KEY, EC_KEY, STRANGER]))
def test_whatever_a_token_says(header: dict[str, Any], claims: dict[str, Any], nearly: bool, key: Any) -> None:
    """Nothing but a token that is right in all it says proves anything, and nothing raises anything."""
    if nearly:
        header = {"alg": "ES256", "kid": "e", **header}
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "worker", "exp": NOW + 600, **claims}
    assert verified_by(KEYS, signed(header, claims, key)) in (
        None,
        "mistimed" if key is EC_KEY and claims.get("iss") == ISSUER else None,
        Verified(claims["sub"], claims["exp"] + LEEWAY_S) if right(header, claims) and key is EC_KEY else None,
    )


def right(header: dict[str, Any], claims: dict[str, Any]) -> bool:
    """Say whether a token is right in all that it says, in as few words as that can be said."""
    numbers = [claims.get(name, NOW) for name in ("exp", "nbf", "iat")]
    return (
        (header.get("alg"), header.get("kid")) == ("ES256", "e")
        and "crit" not in header
        and claims.get("iss") == ISSUER
        and claims.get("aud") in (AUDIENCE, [AUDIENCE])
        and isinstance(claims.get("sub"), str)
        and "exp" in claims
        and all(isinstance(each, int | float | None) and not isinstance(each, bool) for each in numbers)
    )


def verified_by(keys: Any, given_token: str) -> Any:
    """What a token proves to a bridge that was given these keys, also where they are no such thing."""

    async def verify() -> Any:
        tokens = Tokens([IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks="/nowhere")], lambda: NOW)
        found = tokens._issuers[ISSUER]
        found._read = lambda: keys if isinstance(keys, bytes) else json.dumps({"keys": keys}).encode()  # type: ignore[method-assign]
        try:
            return await tokens.verify(given_token)
        except Mistimed:
            return "mistimed"

    return asyncio.run(verify())


JWK = st.dictionaries(
    st.sampled_from(["kty", "kid", "use", "alg", "crv", "x", "y", "n", "e", "d", "k"]),
    JSON | st.sampled_from(["EC", "RSA", "OKP", "oct", "P-256", "Ed25519", "AQAB", "sig", "ES256", "e", KEYS[1]["x"]]),
    max_size=8,
) | st.sampled_from([public(STRANGER, "e2"), public(OTHER_EC_KEY, "e3"), public(WEAK_KEY, "e4")])


@settings(max_examples=60)
@given(st.lists(JWK | JSON, max_size=5), st.binary(max_size=60))
def test_whatever_an_issuer_publishes(others: list[Any], raw: bytes) -> None:
    """No document breaks anything or has a key of ours in it that was not there; ours holds beside any of them."""
    assert verified_by(others, token()) is None
    assert verified_by(raw, token()) is None
    assert verified_by([*others, KEYS[1]], token()) == Verified("worker", NOW + 600 + LEEWAY_S)


class Publishes:
    """An issuer's address, which counts and may fail."""

    def __init__(self) -> None:
        self.asked = 0
        self.keys: list[dict[str, Any]] = KEYS
        self.status = 200
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked += 1
        await self.gate.wait()
        return web.json_response({"keys": self.keys}, status=self.status)


@pytest.fixture
async def published() -> Any:
    """An issuer's address on a free port."""
    publishes = Publishes()
    server = web.Server(publishes)
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield publishes, f"http://127.0.0.1:{runner.addresses[0][1]}/jwks"
    await runner.cleanup()


async def test_a_flood_fetches_once_a_cooldown(published: tuple[Publishes, str]) -> None:
    """Five hundred unknown keys at once and in turn are one question; known ones are answered meanwhile."""
    publishes, url = published
    now = NOW
    tokens = Tokens([IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=url)], lambda: now)
    publishes.gate.clear()
    flood = [asyncio.create_task(tokens.verify(token(header={"kid": f"x{number}"}))) for number in range(100)]
    while not publishes.asked:
        await asyncio.sleep(0)
    publishes.gate.set()
    assert await asyncio.gather(*flood) == [None] * 100
    for number in range(400):
        assert await tokens.verify(token(header={"kid": f"y{number}"})) is None
    assert await tokens.verify(token()) is not None
    assert publishes.asked == 1
    now += COOLDOWN_S
    assert await tokens.verify(token(header={"kid": "x"})) is None
    assert publishes.asked == 2


@pytest.mark.parametrize("order", [1, -1])
def test_two_issuers_may_call_their_keys_alike(tmp_path: pathlib.Path, order: int) -> None:
    """A key is its issuer's: one that another has under the same name signs nothing for it, whoever was asked first."""
    theirs = "https://other.example/"
    issuers = []
    for name, keys in ((ISSUER, [public(EC_KEY, "e")]), (theirs, [public(STRANGER, "e")])):
        file = tmp_path / f"{len(issuers)}.json"
        file.write_text(json.dumps({"keys": keys}))
        issuers.append(IssuerSettings(issuer=name, audience=AUDIENCE, jwks=str(file)))

    async def verify() -> list[bool]:
        tokens = Tokens(issuers, lambda: NOW)
        given_tokens = [token(iss=name, key=key) for name in (ISSUER, theirs) for key in (EC_KEY, STRANGER)][::order]
        # Together, for fetches that are under way are shared, and again, for what was verified is remembered.
        first = [each is not None for each in await asyncio.gather(*map(tokens.verify, given_tokens))]
        assert [await tokens.verify(each) is not None for each in given_tokens] == first
        return first

    assert asyncio.run(verify()) == [True, False, False, True]


async def test_keys_are_rotated(published: tuple[Publishes, str]) -> None:
    """A new key is fetched when it is first seen; one that was withdrawn ends what it signed, verified or not."""
    publishes, url = published
    now = NOW
    tokens = Tokens([IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=url)], lambda: now)
    long = token(exp=NOW + 10 * FRESH_S)
    assert await tokens.verify(long) is not None
    publishes.keys = [public(STRANGER, "new")]
    now += COOLDOWN_S
    assert await tokens.verify(token(key=STRANGER, header={"kid": "new"})) is not None
    assert await tokens.verify(long) is None
    assert publishes.asked == 2


@pytest.mark.parametrize("failure", ["status", "keys", "slow"])
async def test_the_last_good_keys_hold(
    published: tuple[Publishes, str], failure: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the issuer's address fails in any way; the log names the issuer."""
    publishes, url = published
    now = NOW
    tokens = Tokens([IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=url)], lambda: now)
    assert await tokens.verify(token()) is not None
    if failure == "status":
        publishes.status = 500
    elif failure == "keys":
        publishes.keys = []
    else:
        monkeypatch.setattr("bridge.service.access.tokens.FETCH_S", 0.01)
        publishes.gate.clear()
    now += FRESH_S
    assert await tokens.verify(token(exp=now + 600)) is not None
    # On a busy machine a question that is given up at once may not have come to the address.
    assert publishes.asked == 2 or failure == "slow"
    assert "those known before hold" in caplog.text
    publishes.gate.set()


async def test_a_principal_by_its_token(tmp_path: pathlib.Path) -> None:
    """Over HTTP beside keys: what the named principal is granted, and nobody that the access file does not name."""
    file, path = tmp_path / "jwks.json", tmp_path / "access.json"
    file.write_text(json.dumps({"keys": KEYS}))
    found, secrets = listed({"worker": {"look": ["*"]}})
    access_file.change(path, lambda _: found)
    issuer = IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=str(file))
    async with AccessWatch(path, issuers=[issuer], wall=lambda: NOW) as watch, serving(access=watch) as served:
        for secret, status in (
            (secrets["worker"], 200),
            (token(), 200),
            (token(), 200),
            (token(sub="nobody"), 401),
            (token(exp=NOW - 3600), 401),
            ("x", 401),
        ):
            answer = await served.ask("GET", "/v1/queues", Authorization=f"Bearer {secret}")
            assert answer.status == status
        refused = await served.ask("DELETE", "/v1/queues/a/x", Authorization=f"Bearer {token()}")
        assert refused.code == "forbidden"
        leave = watch.leave(*_of(await watch.identify_token(token())))
        access_file.change(path, lambda before: type(before)(principals={"other": {"look": ["*"]}}))
        watch.look()
        assert leave not in watch.leaves


def _of(identity: Any) -> Any:
    from bridge.core.grants import Verb

    assert identity is not None
    return identity, Verb.LOOK, lambda _: None


async def test_a_token_ends_within_a_session(tmp_path: pathlib.Path) -> None:
    """At its time, by the bridge's clock, and not before."""
    file, path = tmp_path / "jwks.json", tmp_path / "access.json"
    file.write_text(json.dumps({"keys": KEYS}))
    access_file.change(path, lambda _: listed({"worker": {"look": ["*"]}})[0])
    now, ended = NOW, []
    issuer = IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=str(file))
    watch = AccessWatch(path, issuers=[issuer], wall=lambda: now)
    identity, verb, _ = _of(await watch.identify_token(token()))
    watch.leave(identity, verb, lambda _: ended.append(now))
    now = NOW + 600 + LEEWAY_S - 1
    watch.look()
    assert ended == []
    now += 1
    watch.look()
    assert ended == [now]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"issuer": ""}, "issuer is missing"),
        ({"audience": ""}, "audience is missing"),
        ({"claim": ""}, "claim is missing"),
        ({"algorithms": ()}, "algorithms are some of"),
        ({"jwks": "http://id.example:80/jwks"}, "a file or an https:// address"),
        ({"jwks": "ftp://id.example/jwks"}, "a file or an https:// address"),
    ],
)
def test_an_issuer_that_cannot_be_meant(change: dict[str, Any], why: str) -> None:
    """Each is refused at the start, by its key."""
    right = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": "https://id.example/jwks"}
    Tokens([IssuerSettings(**right)], lambda: NOW)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=why):
        Tokens([IssuerSettings(**{**right, **change})], lambda: NOW)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="two of them"):
        Tokens([IssuerSettings(**right)] * 2, lambda: NOW)  # type: ignore[arg-type]
