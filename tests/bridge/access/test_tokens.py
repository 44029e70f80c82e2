"""Tokens of a trusted issuer: which prove something, and every way in which one does not (S33)."""

from __future__ import annotations

import asyncio
import base64
import json
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.issuer import LEEWAY_S, IssuerSettings, Mistimed
from queuebell.bridge.access.tokens import Tokens
from queuebell.bridge.contract.errors import ConfigurationError
from tests.support.access import listed
from tests.support.web import serving

NOW = 1_700_000_000.0
ISSUER, AUDIENCE = "https://id.example/", "queuebell"
RSA_KEY = rsa.generate_private_key(65537, 2048)
WEAK_KEY = rsa.generate_private_key(65537, 1024)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
STRANGER = ec.generate_private_key(ec.SECP256R1())
SIGN: dict[str, tuple[str, Any]] = {"RS256": ("r", RSA_KEY), "ES256": ("e", EC_KEY), "EdDSA": ("d", ED_KEY)}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine answers late; that is no verdict."""
    monkeypatch.setattr("queuebell.bridge.access.tokens.FETCH_S", 300.0)


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
    """What one token proves, to a bridge that finds these keys in a file, with which nothing was wrong at its start."""
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [public(EC_KEY, "e")]}))
    tokens = Tokens([IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=str(file), **more)], lambda: NOW)
    file.write_text(json.dumps({"keys": KEYS if keys is None else keys}))
    return asyncio.run(tokens.verify(given_token))


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


def crafted(header: dict[str, Any], claims: dict[str, Any]) -> str:
    """A token signed with the right key, of what PyJWT would not write; what is None is left out."""
    parts = [
        base64.urlsafe_b64encode(json.dumps({k: v for k, v in part.items() if v is not None}).encode()).rstrip(b"=")
        for part in (
            {"alg": "ES256", "kid": "e", **header},
            {"iss": ISSUER, "aud": AUDIENCE, "sub": "worker", "exp": NOW + 600, **claims},
        )
    ]
    algorithm = ECAlgorithm(ECAlgorithm.SHA256)
    signature = base64.urlsafe_b64encode(algorithm.sign(b".".join(parts), EC_KEY)).rstrip(b"=")
    return b".".join((*parts, signature)).decode()


BAD: dict[str, Callable[[], str]] = {
    "signed by a stranger": lambda: token(key=STRANGER),
    "no algorithm": lambda: token("none", key=""),
    "HS256": lambda: token("HS256", key="x" * 32),
    "HS256 with the public key": hs_with_public_key,
    "another algorithm's key": lambda: token("ES256", header={"kid": "r"}),
    "an unknown key": lambda: token(header={"kid": "x"}),
    "a critical extension": lambda: token(header={"crit": ["exp"], "exp": 1}),
    "one that PyJWT knows": lambda: crafted({"crit": ["b64"], "b64": True}, {}),
    "another issuer": lambda: token(iss="https://id.example"),
    "no issuer": lambda: token(iss=None),
    "a list of issuers": lambda: crafted({}, {"iss": [ISSUER]}),
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
    "bytes that are no text": lambda: token() + "\udc80",
}


@pytest.mark.parametrize("name", BAD)
def test_a_token_that_proves_nothing(tmp_path: pathlib.Path, name: str) -> None:
    """Each is refused alike, without an error of ours."""
    assert checked(tmp_path, BAD[name]()) is None


async def test_what_was_verified_is_not_verified_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it ends, and as long as there is room to know it: a flood of good tokens costs no flood of signatures."""
    monkeypatch.setattr("queuebell.bridge.access.tokens._CACHE_MAX", 2)
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": KEYS}))
    now, decoded = NOW, 0
    decode = jwt.decode

    def counting(*given: Any, **more: Any) -> Any:
        nonlocal decoded
        decoded += "algorithms" in more
        return decode(*given, **more)

    monkeypatch.setattr(jwt, "decode", counting)
    tokens = Tokens([IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=str(file))], lambda: now)
    one, two, three = (token(jti=str(number)) for number in range(3))
    bad = token(key=STRANGER)
    for each, times in ((one, 1), (one, 1), (bad, 2), (bad, 3), (two, 4), (one, 4), (three, 5), (one, 6), (three, 6)):
        assert (await tokens.verify(each) is None) is (each is bad)
        assert decoded == times
    now = NOW + 600 + LEEWAY_S
    with pytest.raises(Mistimed):
        await tokens.verify(one)


@pytest.mark.parametrize(
    ("jwk", "good"),
    [
        (public(RSA_KEY, "r"), True),
        (public(RSA_KEY, "r", alg="RS512"), False),
        (public(RSA_KEY, "r", use="enc"), False),
        (public(WEAK_KEY, "r"), False),
    ],
)
def test_which_rsa_keys_sign(tmp_path: pathlib.Path, jwk: dict[str, Any], good: bool) -> None:
    """None of less than 2048 bits: what it signs can be signed by others."""
    key = WEAK_KEY if jwk["n"] == public(WEAK_KEY, "r")["n"] else RSA_KEY
    with warnings.catch_warnings(action="ignore"):
        assert (checked(tmp_path, token("RS256", key=key), [jwk]) is not None) is good


@pytest.mark.parametrize(("name", "what"), [("FETCH_BYTES_MAX", "bytes"), ("KEYS_MAX", "keys")])
def test_how_much_an_issuer_may_publish(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, what: str
) -> None:
    """Just the limit is taken; what is over it is refused whole, and the log says so."""
    most = len(KEYS) if name == "KEYS_MAX" else len(json.dumps({"keys": KEYS}))
    monkeypatch.setattr(f"queuebell.bridge.access.tokens.{name}", most)
    assert checked(tmp_path, token()) is not None
    assert caplog.messages == []
    monkeypatch.setattr(f"queuebell.bridge.access.tokens.{name}", most - 1)
    assert checked(tmp_path, token()) is None
    why = f"more than {most - 1} {what}"
    assert caplog.messages == [f"the issuer's keys are not available; its tokens are rejected until they are: {why}"]


async def test_an_address_that_has_no_jwks_is_told_at_the_start(
    published: tuple[Publishes, str], tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, and the first token asks anew at once: it may be back by then."""
    publishes, url = published
    publishes.body = b"{}"
    path = tmp_path / "access.json"
    access_file.change(path, lambda _: listed({"worker": {"look": ["*"]}})[0])
    issuer = IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=url)
    told = "the issuer's keys are not available; its tokens are rejected until they are: "
    assert list(await Tokens([issuer], lambda: NOW).missing()) == [ISSUER]
    async with AccessWatch(path, wall=lambda: NOW, issuers=[issuer]) as watch:
        while not caplog.messages:
            await asyncio.sleep(0)
        assert [each.startswith(told) for each in caplog.messages] == [True]
        publishes.body = None
        assert await watch.identify_token(token()) is not None
    assert await Tokens([issuer], lambda: NOW).missing() == {}
    asked = publishes.asked
    publishes.gate.clear()
    async with AccessWatch(path, wall=lambda: NOW, issuers=[issuer]):
        while publishes.asked == asked:
            await asyncio.sleep(0)
    publishes.gate.set()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == f"keys of {ISSUER}"]


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


class Publishes:
    """An issuer's address, which counts and may fail."""

    def __init__(self) -> None:
        self.asked = 0
        self.keys: list[dict[str, Any]] = KEYS
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body: bytes | None = None
        self.asked_for: list[str | None] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked += 1
        self.asked_for.append(request.headers.get("Accept"))
        await self.gate.wait()
        body = json.dumps({"keys": self.keys}).encode() if self.body is None else self.body
        return web.Response(body=body, status=self.status, headers=self.headers)


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


async def test_an_issuer_that_sends_elsewhere_is_not_followed(
    published: tuple[Publishes, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its keys come from the address of the settings: elsewhere may be anywhere, in our own network too."""
    publishes, url = published
    publishes.status, publishes.headers = 302, {"Location": url}
    issuer = IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks=url)
    assert await Tokens([issuer], lambda: NOW).verify(token()) is None
    assert publishes.asked == 1
    assert "its address returned status 302" in caplog.text


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
        raw = await served.ask_raw(b"GET /v1/queues HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \xff\r\n\r\n")
        assert raw.status == 401
        refused = await served.ask("DELETE", "/v1/queues/a/x", Authorization=f"Bearer {token()}")
        assert refused.code == "forbidden"
        leave = watch.permit(*_of(await watch.identify_token(token())))
        access_file.change(path, lambda before: type(before)(principals={"other": {"look": ["*"]}}))
        watch.check()
        assert leave not in watch.permits


def _of(identity: Any) -> Any:
    from queuebell.bridge.access.grants import Verb

    assert identity is not None
    return identity, Verb.LOOK, lambda _: None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"issuer": ""}, "issuer is missing"),
        ({"audience": ""}, "audience is missing"),
        ({"claim": ""}, "claim is missing"),
        ({"algorithms": ()}, "algorithms must be some of RS256, ES256, EdDSA$"),
        *(
            ({"jwks": jwks}, "a file or an https:// address")
            for jwks in (
                "http://id.example:80/jwks",
                "http://id.example/jwks",
                "http://localhost:1@id.example/jwks",
                "http://id.example/?@localhost:80/jwks",
                "http://id.example#@localhost/jwks",
                "ftp://id.example/jwks",
                "ftp://localhost/jwks",
                "https:///jwks",
                "http:///jwks",
                "http://[::1/jwks",
            )
        ),
    ],
)
def test_an_issuer_that_cannot_be_meant(change: dict[str, Any], why: str) -> None:
    right = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": "https://id.example/jwks"}
    Tokens([IssuerSettings(**right)], lambda: NOW)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=why):
        Tokens([IssuerSettings(**{**right, **change})], lambda: NOW)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="two tables have the same issuer"):
        Tokens([IssuerSettings(**right)] * 2, lambda: NOW)  # type: ignore[arg-type]
