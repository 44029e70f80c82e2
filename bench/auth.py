"""What it costs to be asked who one is, and what others notice of a flood of wrong keys and of a greedy principal."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

from bench.figures import Report, median_ratio
from bench.machine import cpu_seconds
from bench.sizes import Scale
from bench.stage import Child, Stage
from queuebell.bridge.access import access_file
from queuebell.bridge.access.keys import AccessList, new_key, with_terms

CONNECTIONS: Final = 16
FLOOD_CONNECTIONS: Final = 64
WRONG_KEYS: Final = 10_000
GREEDY: Final = 10_000
GREEDY_LIMIT: Final = 100
ALONE_ROUNDS: Final = 4
PUT: Final = "/v1/queues/bench/auth/messages"
BODY: Final = '{"messages":[{"body":"' + "x" * 100 + '"}]}'
ISSUER: Final = "https://issuer.example"


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Puts without, with a key and with a token, in turns; then with a key beside floods and without, in turns."""
    report = Report("Authentication and limits")
    data = stage.data("asked")
    keys, token, options = _prepared(data)
    _, open_url = await stage.bridge(stage.data("open"))
    bridge, url = await stage.bridge(data, "--auth", *options)
    client, flood = await stage.role("rawhttp"), await stage.role("flood")
    ways = {"none": (open_url, ""), "key": (url, _header(keys["steady"])), "token": (url, _header(token))}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(scale.auth_rounds):
        for name, (where, headers) in ways.items():
            rates[name].append(await _puts(client, where, headers, scale))
        say(f"round {number + 1} of {scale.auth_rounds}: {_told(rates)}")
    for name, limit in (("key", 1.1), ("token", 1.3)):
        report.at_most(f"a put with a {name}, times one without", median_ratio(rates["none"], rates[name]), limit)
    report.tell("puts a second: without / key / token", _told(rates))
    for title, wanted, rate in (
        (f"beside {WRONG_KEYS:,} wrong keys a second", "qb_" + "f" * 64, WRONG_KEYS),
        (f"beside a principal that puts {GREEDY:,} a second and may {GREEDY_LIMIT}", keys["greedy"], GREEDY),
    ):
        await _beside(report, say, (client, flood, bridge), url, keys["steady"], wanted, title, rate, scale)
    report.notes.append(
        f"Puts of one message over {CONNECTIONS} connections, each as soon as the last was answered; "
        f"{scale.auth_rounds} rounds of {scale.auth_s:g} s each in turns. Tokens are EdDSA, cached after the first. A "
        f"flood comes over {FLOOD_CONNECTIONS} connections and reads no answer before it sends on."
    )
    return report


async def _beside(
    report: Report,
    say: Callable[[str], None],
    roles: tuple[Child, Child, Child],
    url: str,
    steady: str,
    flooding: str,
    title: str,
    rate: int,
    scale: Scale,
) -> None:
    """Measure puts of one principal alone and beside a flood, in turns."""
    client, flood, bridge = roles
    alone, beside = [], []
    ran: dict[str, Any] = {}
    for number in range(scale.auth_rounds):
        alone.append(await _puts(client, url, _header(steady), scale))
        await flood.ask(
            "begin", url=url, path=PUT, headers=_header(flooding), body=BODY, rate=rate, connections=FLOOD_CONNECTIONS
        )
        beside.append(await _puts(client, url, _header(steady), scale))
        ran = await flood.ask("end")
        say(f"{title}, round {number + 1} of {scale.auth_rounds}: {alone[-1]:,.0f} / {beside[-1]:,.0f} {ran}")
    report.at_most(f"a put {title}, times one alone", median_ratio(alone, beside), 1.2)
    report.tell(
        "there: puts a second, alone / beside", f"{statistics.median(alone):,.0f} / {statistics.median(beside):,.0f}"
    )
    # Told by the processor's own clock: it means something on a busy machine, too.
    await flood.ask(
        "begin", url=url, path=PUT, headers=_header(flooding), body=BODY, rate=rate, connections=FLOOD_CONNECTIONS
    )
    before = cpu_seconds(bridge.pid) or 0.0
    begun = time.monotonic()
    await asyncio.sleep(ALONE_ROUNDS * scale.auth_s)
    share = ((cpu_seconds(bridge.pid) or before) - before) / (time.monotonic() - begun)
    await flood.ask("end")
    report.at_most("there, what the flood alone takes of the bridge's core", share, 0.2, "{:.3f}")
    report.tell("there, in the last round: due / sent / answered", " / ".join(f"{count:,}" for count in ran.values()))


async def _puts(client: Child, url: str, headers: str, scale: Scale) -> float:
    """Put for a while, and return how many a second were answered."""
    ran = await client.ask(
        "run",
        url=url,
        path=PUT,
        bodies=[BODY],
        connections=CONNECTIONS,
        seconds=scale.auth_s,
        status=201,
        headers=headers,
    )
    return float(ran["rate"])


def _prepared(data: Path) -> tuple[dict[str, str], str, list[str]]:
    """Write who may do what; return the keys, a token, and the options that have the bridge believe it."""
    now = time.time()
    found, keys = AccessList(), {}
    for number, (name, limits) in enumerate((("steady", {}), ("greedy", {"puts_per_second": str(GREEDY_LIMIT)}))):
        found = with_terms(found, name, {"put": ["bench/*"]}, limits=limits)
        found, keys[name] = new_key(found, name, chance=number.to_bytes(32, "big"), now=now)
    access_file.change(data / "access.json", lambda _: found)
    private = Ed25519PrivateKey.generate()
    jwks = data / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{**OKPAlgorithm.to_jwk(private.public_key(), as_dict=True), "kid": "1"}]}))
    config = data / "queuebell.toml"
    config.write_text(f'[[issuer]]\nissuer = "{ISSUER}"\naudience = "queuebell"\njwks = "{jwks}"\n')
    claims = {"iss": ISSUER, "aud": "queuebell", "sub": "steady", "exp": int(now) + 86_400}
    token = jwt.encode(claims, private, "EdDSA", headers={"kid": "1"})
    return keys, token, ["--config", str(config)]


def _header(secret: str) -> str:
    return f"Authorization: Bearer {secret}\r\n"


def _told(rates: dict[str, list[float]]) -> str:
    return " / ".join(f"{statistics.median(taken):,.0f}" for taken in rates.values())
