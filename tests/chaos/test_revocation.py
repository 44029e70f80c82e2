"""What a key opened ends with it, under load and with real processes, and nothing else does; nothing is lost.

Two principals come by every way at once: HTTP, WebSocket, event streams, the Azure endpoint, and sessions over brokers.
Then one key is revoked, or expires, or its grants shrink. What is judged is the order of events: **no request begun
after the bridge knew of it is accepted.**
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import math
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import jwt
import pytest
from azure.storage.queue import QueueSasPermissions, generate_queue_sas
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_file import CHECK_EVERY_S
from queuebell.bridge.access.issuer import LEEWAY_S
from queuebell.bridge.access.keys import AccessList, new_key
from tests.chaos import caller, worker
from tests.chaos.site import INSIDE, Speaker
from tests.chaos.tally import Tally
from tests.support.brokers import Mosquitto, NatsServer
from tests.support.processes import Processes, Program, Service, environment, free_port, until

QUEUE, BROKERED = "billing/orders", "billing/brokered"
"""The second is of workers over brokers alone: a put is carried to one that may be told messages."""
ACCOUNT_KEY = base64.b64encode(b"k" * 64).decode()
ACCOUNTS = {"alpha": "a", "beta": "b"}
GRANTS = {
    name: {verb: ["billing/*", "alpha/*", "beta/*"] for verb in ("take", "put", "ring", "look")} for name in ("a", "b")
}
BY_KEY = ("put", "put once", "settle", "receive", "ring", "look", "websocket", "stream")
SERVERS = ["nats-server", pytest.param("mosquitto", marks=pytest.mark.system)]
AHEAD_S = 3600
PATIENCE_S = 100.0
FEW = 3
"""So often each way is used before anything happens, and again after it."""


class Holder(Speaker):
    """A process that is somebody's: what it was answered, by way."""

    def __init__(self, *args: Any) -> None:
        self.asked: dict[str, list[dict[str, Any]]] = defaultdict(list)
        super().__init__(*args)

    def heard(self, line: str) -> None:
        """Take note of an event."""
        super().heard(line)
        event = json.loads(line)
        assert self.tally is not None
        if event["event"] == "attempt":
            self.tally.attempted[event["body"]] = None
        elif event["event"] == "asked":
            self.asked[event["way"]].append(event)
            if event.get("body") and event["status"] == 201:
                self.tally.acknowledge([event["body"]], event["at"])

    def accepted(self, way: str, since: float = -math.inf) -> list[dict[str, Any]]:
        """Return the requests of one way that began later and were let in."""
        return [each for each in self.asked[way] if each["began"] > since and 200 <= each["status"] < 300]

    def refused(self, way: str) -> list[dict[str, Any]]:
        """Return the requests of one way that were refused."""
        return [each for each in self.asked[way] if 400 <= each["status"] < 500]

    def ends(self, way: str) -> list[dict[str, Any]]:
        """Return how what stayed open ended."""
        return [each for each in self.events["ended"] if each["way"] == way]

    def still_hears(self, way: str, since: float) -> bool:
        """Say whether what stays open was heard of later, and never ended."""
        return not self.ends(way) and any(each["way"] == way and each["at"] > since for each in self.events["heard"])


class Load:
    """A bridge that asks for keys, its brokers, and everybody who comes to it."""

    def __init__(self, processes: Processes, brokers: dict[str, str]) -> None:
        self.processes = processes
        self.brokers = brokers
        self.tally = Tally()
        self.path = processes.folder / "bridge" / "access.json"
        self.bridge: Service
        self.azure = ""
        self.workers: dict[str, Holder] = {}
        self.callers: dict[str, Holder] = {}

    async def serve(self, listed: AccessList, secret: str, *, launcher: tuple[str, ...] = (), issuer: str = "") -> None:
        """Start the bridge, with an account and a queue of the Azure endpoint for each principal, and workers."""
        access_file.change(self.path, lambda _: listed)
        port = free_port()
        config = self.processes.folder / "queuebell.toml"
        accounts = "".join(
            f'[[azure_account]]\nname = "{name}"\nprincipal = "{principal}"\nkey = "{ACCOUNT_KEY}"\n'
            for name, principal in ACCOUNTS.items()
        )
        config.write_text(f'auth = true\nazure_queue = "127.0.0.1:{port}"\n{issuer}{accounts}')
        config.chmod(0o600)
        options = [word for kind, url in self.brokers.items() for word in (f"--{kind}", url)]
        self.bridge = await self.processes.serve(
            "--config", str(config), *options, data="bridge", launcher=launcher, log_format="json"
        )
        self.azure = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as self.bridge.asking:
            # There they are not made by the first put.
            for account in ACCOUNTS:
                (body,) = self.tally.names(1)
                assert await self.bridge.put(f"{account}/orders", body) == 201
                self.tally.acknowledge([body], time.time())
        await self.worker("b-websocket", secret, "", QUEUE, "alpha/orders", "beta/orders")
        await self.worker("b-nats", secret, "nats", BROKERED)

    async def worker(self, name: str, secret: str, over: str, *queues: str, hold: bool = False) -> Holder:
        """Start a worker that is woken ``over`` HTTP or a broker."""
        wanted = worker.Options(
            self.bridge.url, self.brokers.get(over, self.bridge.url), list(queues or (QUEUE,)), name, concurrency=8,
            hold=hold, visibility=2.0, poll_cap=3.0, luck=0.1,
        )  # fmt: skip
        made = self.workers[name] = await self._start(wanted.arguments(), name, QUEUEBELL_API_KEY=secret)
        return made

    async def hold(self, secret: str, over_nats: str) -> None:
        """Start workers that hold what they take."""
        await self.worker("holds", secret, "", hold=True)
        await self.worker("holds-nats", over_nats, "nats", BROKERED, hold=True)

    async def caller(self, name: str, secret: str, account: str) -> Holder:
        """Start somebody who comes by every way."""
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
        may = QueueSasPermissions(add=True)
        signature = generate_queue_sas(account, "orders", ACCOUNT_KEY, may, later)
        wanted = caller.Options(
            name, self.bridge.url, secret, [QUEUE, BROKERED], f"billing/own-{name}",
            f"{self.azure}/{account}/orders/messages?{signature}", self.brokers,
        )  # fmt: skip
        made = self.callers[name] = await self._start(wanted.arguments(), name)
        return made

    async def _start(self, command: list[str], name: str, **env: str) -> Holder:
        made: Holder = await self.processes.start(*command, name=name, kind=Holder, env=environment(**env))
        made.tally = self.tally
        return made

    def log(self, words: str) -> list[dict[str, Any]]:
        """Return lines of the bridge's log."""
        lines = [json.loads(line) for line in self.bridge.errors.splitlines() if line.startswith("{")]
        return [line for line in lines if words in line["message"]]

    async def stands(self) -> None:
        """Wait until everybody came in by every way, and the workers that hold what they take have some."""
        few = {"websocket": 1, "stream": 1, **dict.fromkeys(self.brokers, 1)}

        def missing() -> list[str]:
            ways = (*BY_KEY, "azure", *self.brokers)
            return [
                f"{one.name}: {way}: {[each['status'] for each in one.asked[way]][-5:]}"
                for one in self.callers.values()
                for way in ways
                if len(one.accepted(way)) < few.get(way, FEW)
            ] + [one.name for one in self.workers.values() if not one.events["start"]]

        await holds(lambda: not missing(), lambda: f"not all came in, and not every worker has work: {missing()}")

    async def stop_callers(self) -> None:
        """Have them end in order."""
        for one in self.callers.values():
            one.tell("stop")
        for one in self.callers.values():
            assert await one.ended() == 0, one.errors

    async def drains(self, secret: str) -> None:
        """Have whoever may, by ``secret``, handle all that is left; wait until nothing is, leased or visible."""
        queues = [f"billing/own-{name}" for name in self.callers]
        await self.worker("heir", secret, "", *queues)
        await self.tally.all_done()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as self.bridge.asking:
            for queue in (QUEUE, BROKERED, *queues, *(f"{account}/orders" for account in ACCOUNTS)):
                await self.bridge.is_drained(queue)


async def holds(condition: Callable[[], bool], why: Callable[[], str]) -> None:
    """Wait until something holds; fails with why it does not."""
    try:
        await until(condition, "", PATIENCE_S)
    except AssertionError:
        raise AssertionError(why()) from None


class Victim(NamedTuple):
    """Who is refused from some moment on."""

    who: Holder
    status: int
    """What its requests are answered then."""
    ways: tuple[str, ...]
    """Those that its key, or its principal, opened."""


def over(load: Load, victims: list[Victim], others: list[Holder], known: float) -> bool:
    """Say whether everybody has come by every way since."""
    for who, _, ways in victims:
        if not all(sum(each["began"] > known for each in who.asked[way]) >= FEW for way in ways):
            return False
        if not who.asked["slow"]:
            return False
    held = ("websocket", "stream", *load.brokers)
    for one in others:
        if not all(len(one.accepted(way, known)) >= FEW for way in (*BY_KEY, "azure") if way not in held):
            return False
        if not all(one.still_hears(way, known) for way in held):
            # What ended will not be heard again: to be judged at once.
            return any(one.ends(way) for way in held)
    return True


def judged(load: Load, victims: list[Victim], others: list[Holder], known: float) -> list[str]:
    """Return what went wrong, by the order of events alone."""
    wrong: list[str] = []
    for who, status, ways in victims:
        for way in ways:
            late = who.accepted(way, known)
            wrong += [f"{who.name}: {way} begun {late[-1]['began'] - known:.3f} s later was accepted"] if late else []
            answers = {each["status"] for each in who.asked[way] if each["began"] > known}
            wrong += [] if answers == {status} else [f"{who.name}: {way} is answered {sorted(answers)}"]
        # One that took the bridge too long to wait for was over before.
        slow = [each["status"] for each in who.asked["slow"] if each["at"] > known]
        wrong += [] if slow in ([status], []) else [f"{who.name}: what it sent slowly was answered {slow}"]
        code = {401: "unauthenticated", 403: "forbidden"}[status]
        ends = {"websocket": str(4000 + status), "stream": "to its end", **dict.fromkeys(load.brokers, code)}
        for way, how in ends.items():
            told = [each["how"] for each in who.ends(way)]
            wrong += [] if told == [how] else [f"{who.name}: {way} ended with {told}"]
    for one in others:
        for way, asked in one.asked.items():
            bad = [each["status"] for each in asked if not 200 <= each["status"] < 300]
            wrong += [f"{one.name}: {way} was answered {bad}"] if bad else []
        wrong += [f"{one.name}: {each['way']} ended with {each['how']}" for each in one.events["ended"]]
    return wrong


async def struck(
    load: Load, victims: list[Victim], others: list[Holder], strike: Callable[[], Awaitable[float]]
) -> None:
    """Let it happen under load, and hold the bridge to what it promises.

    ``strike`` returns since when the bridge knows of it.
    """
    await load.stands()
    for victim in victims:
        victim.who.tell("slow")
        await victim.who.line('"slow"')
    known = await strike()
    await holds(lambda: over(load, victims, others, known), lambda: f"{judged(load, victims, others, known)}")
    assert judged(load, victims, others, known) == []
    names = {one.name[0] for one in others}
    assert [line for line in load.log("refused:") if line["principal"] in names] == []
    held = {each["body"] for name in ("holds", "holds-nats") for each in load.workers[name].events["start"]}
    # What the former holder's workers took is handled by others; their own handlers never end.
    await load.tally.all_done(held)
    await load.stop_callers()


async def loses_nothing(load: Load, secret: str) -> None:
    """All that was acknowledged is handled, what nobody put is not, and the store is empty."""
    await load.drains(secret)
    total = load.tally.total()
    assert (total.lost, total.unexpected) == (0, 0)
    for name, one in load.workers.items():
        if not name.startswith("holds"):
            assert "rejects this worker" not in one.errors, one.errors
            assert "the session with the bridge at" not in one.errors, one.errors


@contextlib.asynccontextmanager
async def loaded(folder: Path, kind: str) -> AsyncIterator[Load]:
    """A bridge to be, with a NATS server and an MQTT broker."""
    async with contextlib.AsyncExitStack() as opened:
        nats = await opened.enter_async_context(NatsServer(folder / "nats", jetstream=False))
        if kind == "mosquitto":
            mqtt = (await opened.enter_async_context(Mosquitto(folder / "mqtt"))).port
        else:
            # A server of its own: one brings each frame over both.
            mqtt = (await opened.enter_async_context(NatsServer(folder / "mqtt", mqtt=True))).mqtt_port
        processes = await opened.enter_async_context(Processes(folder))
        yield Load(processes, {"nats": f"nats://127.0.0.1:{nats.port}", "mqtt": f"mqtt://127.0.0.1:{mqtt}"})


def keys(*names: str, expires: dict[str, float] | None = None) -> tuple[AccessList, dict[str, str]]:
    """Return a list with keys of these names, each of the principal that its first letter is."""
    found, secrets = AccessList(), {}
    for number, name in enumerate(names):
        found, secrets[name] = new_key(
            found, name[0], GRANTS[name[0]], chance=bytes([number]) * 32, now=time.time(),
            expires_at=(expires or {}).get(name),
        )  # fmt: skip
    return found, secrets


async def command(load: Load, *words: str) -> float:
    """Give a command that changes the access file; return when the bridge had read it."""
    before = len(load.log("access list reloaded"))
    program: Program = await load.processes.start(
        sys.executable, "-m", "queuebell", "key", *words, "--access", str(load.path)
    )
    assert await program.ended() == 0, program.errors
    found = await until(lambda: load.log("access list reloaded")[before:], "the bridge has read it")
    # The log drops what is less than a millisecond.
    return datetime.datetime.fromisoformat(found[0]["time"]).timestamp() + 0.001


def test_the_bridge_looks_often_enough() -> None:
    """What a command has changed is known within a second by the bridge's own period, and half of it is to spare."""
    assert 2 * CHECK_EVERY_S <= 1.0


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_key_that_is_revoked(kind: str, tmp_path: Path) -> None:
    """401 and 4401 for whoever comes by it; another key of the same principal, and everybody else, notice nothing."""
    listed, secrets = keys("a1", "a2", "b")
    async with loaded(tmp_path, kind) as load:
        await load.serve(listed, secrets["b"])
        gone, *others = [
            await load.caller(name, secrets[name], account)
            for name, account in (("a1", "alpha"), ("a2", "alpha"), ("b", "beta"))
        ]
        await load.hold(secrets["a1"], secrets["a1"])
        victim = Victim(gone, 401, (*BY_KEY, *load.brokers))
        await struck(load, [victim], others, lambda: command(load, "revoke", listed.keys[0].id))
        # Its account at the Azure endpoint has a key of its own, and its principal keeps its grants.
        assert not gone.refused("azure")
        await loses_nothing(load, secrets["a2"])


@pytest.mark.rest
async def test_grants_that_shrink(tmp_path: Path) -> None:
    """403 and 4403 for whoever comes by any key of that principal, its account at the Azure endpoint included."""
    listed, secrets = keys("a1", "b")
    async with loaded(tmp_path, "nats-server") as load:
        await load.serve(listed, secrets["b"])
        less = await load.caller("a1", secrets["a1"], "alpha")
        other = await load.caller("b", secrets["b"], "beta")
        await load.hold(secrets["a1"], secrets["a1"])
        victim = Victim(less, 403, (*BY_KEY, "azure", *load.brokers))
        await struck(load, [victim], [other], lambda: command(load, "change", "a", "--allow", "take=shop/*"))
        await loses_nothing(load, secrets["b"])


@pytest.mark.rest
async def test_keys_and_tokens_that_expire(tmp_path: Path) -> None:
    """In the middle of what they opened, by the bridge's clock, which is set ahead: 401 and 4401."""
    ends = time.time() + AHEAD_S / 2
    listed, secrets = keys("a1", "a2", "b", expires={"a1": ends})
    signing = ec.generate_private_key(ec.SECP256R1())
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{**json.loads(ECAlgorithm.to_jwk(signing.public_key())), "kid": "one"}]}))
    claims = {"iss": "https://id.example/", "aud": "queuebell", "sub": "a", "exp": ends - LEEWAY_S}
    token = jwt.encode(claims, signing, "ES256", {"kid": "one"})
    async with loaded(tmp_path, "nats-server") as load:
        issuer = f'[[issuer]]\nissuer = "https://id.example/"\naudience = "queuebell"\njwks = "{jwks}"\n'
        await load.serve(listed, secrets["b"], launcher=(*INSIDE, "clock", str(AHEAD_S)), issuer=issuer)
        over = [await load.caller("a1", secrets["a1"], "alpha"), await load.caller("a-token", token, "alpha")]
        others = [await load.caller("a2", secrets["a2"], "alpha"), await load.caller("b", secrets["b"], "beta")]
        await load.hold(token, secrets["a1"])

        async def jump() -> float:
            load.bridge.signal(signal.SIGUSR1)
            # The clock is one for all: what was refused first shows that it has jumped.
            await until(lambda: any(one.refused(way) for one in over for way in BY_KEY), "somebody is refused")
            return min(each["at"] for one in over for way in BY_KEY for each in one.refused(way))

        victims = [Victim(one, 401, (*BY_KEY, *load.brokers)) for one in over]
        await struck(load, victims, others, jump)
        await loses_nothing(load, secrets["b"])
