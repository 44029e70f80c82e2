"""Any header that says who comes, and from where: believed where it proves it, told nowhere (S4, S15, S19)."""

from __future__ import annotations

import asyncio
import inspect
import json
import pathlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.issuer import IssuerSettings
from queuebell.bridge.contract.address import is_loopback
from queuebell.bridge.http.server.answer import Refusal
from queuebell.bridge.http.server.guard import Hosts
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.observe.facts import AccessRefused, Fact
from queuebell.bridge.observe.logs import FactLog
from tests.support.access import listed
from tests.support.web import Reply, Served, serving

SIGNER = ec.generate_private_key(ec.SECP256R1())
ISSUER = "https://id.example/"
LISTED, SECRETS = listed({"worker": {"look": ["*"], "operate": ["*"]}})
KEY = SECRETS["worker"].encode()
TOKEN = jwt.encode(
    {"iss": ISSUER, "aud": "queuebell", "sub": "worker", "exp": time.time() + 86_400}, SIGNER, "ES256", {"kid": "e"}
).encode()
PROOFS = (KEY, TOKEN)

fuzzed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)

_schemes = st.sampled_from([b"Bearer", b"bearer", b"BEARER", b"Basic", b"Digest", b"Bearer:", b"SharedKey", b""])
_blanks = st.sampled_from([b" ", b"  ", b"\t", b"", b" \t ", b"\xa0", b"=", b", ", b"\x0b"])
_bytes = st.binary(max_size=40).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b""))
_secrets = st.one_of(
    st.sampled_from(PROOFS),
    st.tuples(st.sampled_from(PROOFS), st.integers(0, 300), _bytes).map(lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]),
    st.tuples(st.sampled_from(PROOFS), st.integers(1, 300)).map(lambda t: t[0][: t[1]]),
    st.sampled_from(
        [KEY.upper(), KEY[3:], b"qb_" + b"f" * 64, TOKEN.swapcase(), TOKEN + b"=", b"x" * 8150, b"y" * 65536]
    ),
    _bytes,
)
_values = st.one_of(
    st.builds(lambda scheme, blank, secret, end: scheme + blank + secret + end, _schemes, _blanks, _secrets, _blanks),
    _bytes,
)
_lines = st.tuples(
    st.sampled_from(
        [b"Authorization", b"authorization", b"Authorization", b"Proxy-Authorization", b"X-Api-Key", b"api-key",
         b"Cookie", b"Sec-WebSocket-Protocol", b"X-Forwarded-For", b"X-Forwarded-User", b"Authorization "]
    ),
    _values,
)  # fmt: skip
_targets = st.sampled_from([b"/v1/queues", b"/v1/queues?access_token=" + KEY, b"/metrics?token=" + TOKEN])
_requests = st.tuples(_targets, st.lists(_lines, min_size=1, max_size=3))
_authorize = re.compile(rb"(?i:bearer) +(?:%b|%b) *" % tuple(map(re.escape, PROOFS))).fullmatch


def served(run: Callable[[Served], Awaitable[None]], folder: pathlib.Path) -> None:
    """Serve a bridge that asks for keys and believes an issuer, and run against it."""
    path, jwks = folder / "access.json", folder / "jwks.json"
    access_file.change(path, lambda _: LISTED)
    jwks.write_text(json.dumps({"keys": [{**json.loads(ECAlgorithm.to_jwk(SIGNER.public_key())), "kid": "e"}]}))
    issuer = IssuerSettings(issuer=ISSUER, audience="queuebell", jwks=str(jwks))

    async def all_of_it() -> None:
        async with AccessWatch(path, issuers=[issuer]) as watch:
            async with serving(access=watch, header_timeout=0.5, body_timeout=0.5, linger=0.05) as each:
                each.bridge.observe(FactLog())
                await run(each)

    asyncio.run(all_of_it())


async def told(served: Served, target: bytes, lines: list[tuple[bytes, bytes]]) -> Reply:
    """The answer to one request with these lines."""
    head = b"".join(b"%b: %b\r\n" % line for line in lines)
    return await served.ask_raw(b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%b\r\n" % (target, head))


NEARLY = [
    scheme + KEY + end
    for scheme, end in (
        (b"Bearer ", b"="), (b"Bearer ", b","), (b"Bearer =", b""), (b"Bearer\t", b""), (b'Bearer "', b'"'),
        (b"", b""), (b"Bearer:", b""), (b"Bearer Bearer ", b""), (b"Bearer", b""), (b"Bearer ", b" " + KEY),
    )
]  # fmt: skip


@settings(fuzzed, max_examples=15)
@example([(b"/v1/queues", [(b"Authorization", value)]) for value in NEARLY])
@example([(b"/v1/queues", [(b"Authorization", b"Bearer \xff")])])
@example([(b"/v1/queues", [(b"Authorization", b"Bearer " + TOKEN + b"\xff")])])
@example([(b"/v1/queues", [(b"Authorization", b"bearer  " + proof + b" ")]) for proof in PROOFS])
@example([(b"/v1/queues", [(b"Authorization", b"Bearer " + KEY), (b"authorization", b"Bearer " + KEY)])])
@example([(b"/v1/queues", [(b"Authorization", b"Basic " + KEY)]), (b"/v1/queues", [(b"X-Api-Key", KEY)])])
@example([(b"/v1/queues", [(b"Cookie", b"key=" + KEY)]), (b"/v1/queues", [(b"Authorization", b"x" * 65536)])])
@given(st.lists(_requests, min_size=4, max_size=8))
def test_any_header_that_says_who_comes(
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    requests: list[tuple[bytes, list[tuple[bytes, bytes]]]],
) -> None:
    """Let in is who has one Authorization header that proves it, and nobody else; nothing breaks or is repeated."""

    async def run(served: Served) -> None:
        facts: list[Fact] = []
        served.bridge.observe(facts.append)
        for target, lines in requests:
            reply = await told(served, target, lines)
            given_all = [value.strip(b" \t") for name, value in lines if name.lower() == b"authorization"]
            if reply.status == 200:
                assert len(given_all) == 1 and _authorize(given_all[0]), (lines, reply)
            else:
                assert reply.status in (400, 401, 431), (lines, reply)
                assert reply.code in ("bad_parameter", "unauthenticated", "headers_too_large")
                well_formed = all(value.isascii() and value.decode().isprintable() for _, value in lines)
                alone = len(given_all) == 1 and {name for name, _ in lines} <= {b"Authorization", b"authorization"}
                assert not (well_formed and alone and _authorize(given_all[0])), (lines, reply)
            metrics = served.bridge.metrics.render()
            for proof in PROOFS:
                assert proof not in reply.body and proof not in metrics and proof.decode() not in str(reply.headers)
        assert {fact.address for fact in facts if isinstance(fact, AccessRefused)} <= {"127.0.0.1"}

    served(run, tmp_path)
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]
    assert not any(proof.decode() in caplog.text for proof in PROOFS)
    caplog.clear()


_forwarded = st.lists(
    st.tuples(
        st.sampled_from(
            [b"X-Forwarded-For", b"X-Forwarded-Host", b"X-Forwarded-Proto", b"X-Real-IP", b"Forwarded",
             b"X-Original-URL", b"X-Rewrite-URL", b"X-HTTP-Method-Override", b"Via", b"X-Forwarded-Server"]
        ),
        st.sampled_from([b"10.9.8.7", b"for=10.9.8.7;host=evil.example", b"/v1/queues", b"DELETE", b"https"]) | _bytes,
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@settings(fuzzed, max_examples=12)
@given(st.lists(_forwarded, min_size=4, max_size=8))
def test_any_header_of_a_proxy(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, requests: list[list[tuple[bytes, bytes]]]
) -> None:
    """None of them lets anybody in, names another host or route, or stands in the log for who asked."""

    async def run(served: Served) -> None:
        facts: list[Fact] = []
        served.bridge.observe(facts.append)
        for lines in requests:
            for target, status, code in ((b"/v1/queues", 401, "unauthenticated"), (b"/nowhere", 404, "not_found")):
                reply = await told(served, target, lines)
                assert (reply.status, reply.code) in ((status, code), (400, "bad_parameter")), (lines, reply)
            head = b"".join(b"%b: %b\r\n" % line for line in lines)
            evil = await served.ask_raw(b"GET /livez HTTP/1.1\r\nHost: evil.example\r\n%b\r\n" % head)
            assert evil.status in (400, 421), (lines, evil)
        assert {fact.address for fact in facts if isinstance(fact, AccessRefused)} <= {"127.0.0.1"}

    served(run, tmp_path)
    assert "10.9.8.7" not in caplog.text
    caplog.clear()


_names = st.one_of(
    st.text(max_size=60),
    st.text("localhst.127[]:0@/\\%\t\0evil-_", max_size=40),
    st.sampled_from(["localhost", "bridge.internal", "127.0.0.1", "[::1]", "evil.localhost"]).flatmap(
        lambda name: st.builds(lambda a, b: a + name + b, st.text(max_size=4), st.text(max_size=6))
    ),
)


@settings(max_examples=250)
@example("bridge.internal.evil.example")
@example("evil.example#bridge.internal")
@example("bridge.internal\udcff")
@example("ｌocalhost")
@given(_names)
def test_any_host(authority: str) -> None:
    """Taken is a name of ours, as it is written; everything else is one refusal, which repeats nothing."""
    hosts = Hosts(WebSettings(allowed_hosts=("bridge.internal",)))
    for _ in range(2):
        try:
            name, refused = hosts.check(authority), None
        except Refusal as error:
            name, refused = "", error
        if refused is None:
            host = authority if authority.endswith("]") else re.sub(":[0-9]{0,5}$", "", authority)
            assert host.isascii() and host.lower().rstrip(".") == name
            assert name == "bridge.internal" or name.endswith("localhost") or is_loopback(name.strip("[]"))
        else:
            assert (refused.code, refused.close) == ("unknown_host", True)
            assert refused.detail == "unknown Host; allowed_hosts adds names of this server"


_origins = st.sampled_from(
    [b"null", b"http://evil.example", b"http://localhost.evil.example", b"https://localhost", b"http://localhost:1",
     b"http://localhost, http://evil.example", b"http://localhost@evil.example", b"HTTP://LOCALHOST.", b"", b"http://"]
)  # fmt: skip


@settings(fuzzed, max_examples=15)
@given(st.lists(st.lists(_origins | _bytes, min_size=1, max_size=2), min_size=4, max_size=8))
def test_any_origin(tmp_path: pathlib.Path, requests: list[list[bytes]]) -> None:
    """Also with a key that would be good: a page of elsewhere gets nothing, and no header that lets it read."""

    async def run(served: Served) -> None:
        for origins in requests:
            lines = [(b"Authorization", b"Bearer " + KEY), *((b"Origin", each) for each in origins)]
            reply = await told(served, b"/v1/queues", lines)
            own = [each.strip(b" \t").lower() for each in origins] == [b"http://localhost"]
            expected = (200,) if own else (403, 400)
            assert reply.status in expected, (origins, reply)
            assert not [name for name in reply.headers if name.startswith("access-control")]

    served(run, tmp_path)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("test", "examples"),
    [
        (test_any_header_that_says_who_comes, st.lists(_requests, min_size=4, max_size=8)),
        (test_any_header_of_a_proxy, st.lists(_forwarded, min_size=4, max_size=8)),
        (test_any_origin, st.lists(st.lists(_origins | _bytes, min_size=1, max_size=2), min_size=4, max_size=8)),
    ],
    ids=["who", "proxy", "origin"],
)
def test_at_length(test: Any, examples: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same with ten times as many examples."""
    more = {"caplog": caplog} if "caplog" in inspect.signature(test.hypothesis.inner_test).parameters else {}
    settings(fuzzed, max_examples=150)(given(requests=examples)(test.hypothesis.inner_test))(tmp_path=tmp_path, **more)
