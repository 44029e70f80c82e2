"""Who may do what in a run with authentication: the desk where keys are made, and the bridge's view of its file.

The file is real JSON, read by the real code; it stands in no file system, whose times are not ours. Keys are real keys.
A token's signature is not: what a token says is believed if the desk made it.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.issuer import Mistimed
from queuebell.bridge.access.keys import CHANCE_BYTES, PREFIX, Access, AccessList, Identity, new_key, without
from queuebell.bridge.brokers.credential import Credential
from queuebell.bridge.contract.address import http_addresses
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.service.channels.brokered import BrokeredSessions
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from queuebell.bridge.access.access_file import Stamp
    from queuebell.bridge.access.tokens import Tokens
    from tests.simulation.process import Process
    from tests.simulation.world import World

FETCH_S: Final = 3.0
"""What it takes at most until an issuer's keys are there; four of five times they are known."""
RESTART_S: Final = 1.0
"""Virtual seconds until a bridge that ended for want of its access file is started again."""
_FETCHED: Final = 0.2
_GRANTS: Final = {
    "worker": {"take": ["shop/*"]},
    "producer": {"put": ["shop/*"], "ring": ["shop/*"]},
    "scaler": {"take": ["shop/*"], "look": ["shop/*"]},
}
_SHRUNK: Final = {role: {verb: ["shop/other"] for verb in granted} for role, granted in _GRANTS.items()}
# Where a key may go in the clear: nobody connects to it.
(_HERE,) = http_addresses("http://127.0.0.1:1", "bridge")

Undo = Callable[[], None]


class Verified(NamedTuple):
    """Whom a token names, and until when (`queuebell.bridge.access.tokens.Verified`, which needs a library)."""

    principal: str
    until: float


class _Proof(msgspec.Struct):
    """A key or a token that the desk made; true times."""

    host: str
    until: float
    good_from: float | None
    """Since when the file has had it; None before."""
    void_from: float | None = None
    """Since when the file has it no more."""


class Desk:
    """Makes keys, hands them out and revokes them; outlives all processes, and knows the truth."""

    def __init__(self, world: World) -> None:
        self.version = 0
        """Of the file: another number is another content."""
        self.read = 0
        """The version that a bridge read last."""
        self._world = world
        self._chance = world.kernel.chance("access")
        self._listed = self._written = AccessList()
        self._access = Access(self._written)
        """What stood in the file last that could be read."""
        self._damaged: list[bool] = []
        self._held: dict[str, str] = {}
        self._proofs: dict[str, _Proof] = {}
        self._regranted: dict[str, float] = {}
        self._opened: dict[int, tuple[str, tuple[str, ...]]] = {}
        """By the number of a session of this bridge: what opened it, and its queues."""
        self._busy: set[str] = set()
        for name, host in world.hosts.items():
            if host.role in _GRANTS:
                self._listed, self._held[name] = self._key(self._listed, name, _GRANTS[host.role])
        self._publish()

    def key_of(self, host: str) -> Callable[[], str]:
        return lambda: self._held[host]

    def credential(self, host: str) -> Credential:
        return Credential(_HERE, self.key_of(host), {})

    def text(self) -> bytes:
        """Return what the file says; raises `Unreachable` while it is gone."""
        if any(self._damaged):
            raise access_file.Unreachable("access: cannot read access.json: No such file or directory")
        text = msgspec.json.encode(self._listed)
        return text[: len(text) // 2] if self._damaged else text

    def token(self, text: str) -> Verified | None:
        """Return what a token says, if the desk made it; raises `Mistimed` once it is over."""
        proof = self._proofs.get(text)
        if proof is None:
            return None
        if self._world.kernel.now >= proof.until:
            raise Mistimed("the token has expired")
        return Verified(proof.host, EPOCH + proof.until)

    def revoke(self, host: str, *, replaced_first: bool) -> Undo | None:
        """Take a host's key from it until it gets another; ``replaced_first`` makes it the other way round."""
        if not self._begin(host):
            return None
        old = self._held[host]
        first, then = lambda: self._drop(old), lambda: self._replace(host)
        if replaced_first:
            first, then = then, first
        first()
        self._publish()
        return self._mends(host, then)

    def expire(self, host: str, seconds: float, *, token: bool) -> Undo | None:
        """Give a host a key or a token that ends by itself, and another key in the end."""
        if not self._begin(host):
            return None
        now = self._world.kernel.now
        old = self._held[host]
        if token:
            text = f"token.{len(self._proofs)}.{host}"
            self._proofs[text] = _Proof(host, now + seconds, now)
            self._held[host] = text
        else:
            self._replace(host, until=now + seconds)
        self._drop(old)
        self._publish()
        return self._mends(host, lambda: self._replace(host))

    def shrink(self, host: str) -> Undo | None:
        if not self._begin(host):
            return None
        role = self._world.hosts[host].role
        self._grant(host, _SHRUNK[role])
        self._publish()
        return self._mends(host, lambda: self._grant(host, _GRANTS[role]))

    def damage(self, *, gone: bool) -> Undo | None:
        """Have the file be of no use, unless it stands there unread: nobody could say which one holds meanwhile."""
        if not self._damaged and self.read != self.version:
            return None
        self._damaged.append(gone)
        self.version += 1

        def undo() -> None:
            self._damaged.remove(gone)
            self.version += 1
            self._publish()

        return undo

    def _mends(self, host: str, mend: Callable[[], None]) -> Undo:
        def undo() -> None:
            self._busy.discard(host)
            mend()
            self._publish()

        return undo

    def _begin(self, host: str) -> bool:
        if host in self._busy:
            return False
        self._busy.add(host)
        return True

    def _key(
        self, listed: AccessList, host: str, grants: Mapping[str, list[str]] = {}, until: float = math.inf
    ) -> tuple[AccessList, str]:
        chance = self._chance.randbytes(CHANCE_BYTES)
        ends = None if math.isinf(until) else EPOCH + until
        listed, secret = new_key(listed, host, grants, chance=chance, now=EPOCH, expires_at=ends)
        self._proofs[secret] = _Proof(host, until, None)
        return listed, secret

    def _replace(self, host: str, until: float = math.inf) -> None:
        self._listed, self._held[host] = self._key(self._listed, host, until=until)

    def _drop(self, secret: str) -> None:
        self._listed, _ = without(self._listed, _sha256(secret)[:12])

    def _grant(self, host: str, grants: dict[str, list[str]]) -> None:
        self._listed = msgspec.structs.replace(self._listed, principals={**self._listed.principals, host: grants})

    def _publish(self) -> None:
        """Write the list, and note what it changed; into a damaged file nothing is written that anybody could read."""
        if self._damaged:
            return
        now = self._world.kernel.now
        self.version += 1
        before, self._written = self._written.principals, self._listed
        self._access = Access(self._listed)
        known = {key.sha256 for key in self._listed.keys}
        for secret, proof in self._proofs.items():
            if not secret.startswith(PREFIX):
                continue
            if _sha256(secret) in known:
                proof.good_from = now if proof.good_from is None else proof.good_from
            elif proof.good_from is not None and proof.void_from is None:
                proof.void_from = now
        for host, grants in self._listed.principals.items():
            if before.get(host) != grants:
                self._regranted[host] = now

    def may_take(self, host: str, queue: str) -> bool:
        return self._judge(self._held[host], Verb.TAKE, queue)[1]

    def judged(self, secret: str | None, verb: Verb, queues: Iterable[str], *, let_in: bool) -> None:
        """Hear what the bridge made of somebody who wants to do something with these queues."""
        self._tell(secret, verb, queues, let_in=let_in, always=not let_in)

    def opened(self, number: int, secret: str | None, queues: Sequence[str]) -> None:
        self._tell(secret, Verb.TAKE, queues, let_in=True, always=True)
        self._opened[number] = (secret or "", tuple(queues))

    def used(self, number: int) -> None:
        """Hear that the bridge takes a frame of a session, or has wakes for it."""
        opened = self._opened.get(number)
        if opened is not None:
            self._tell(opened[0], Verb.TAKE, opened[1], let_in=True, always=False)

    def restarted(self) -> None:
        self._opened.clear()

    def _tell(self, secret: str | None, verb: Verb, queues: Iterable[str], *, let_in: bool, always: bool) -> None:
        judgements = [(queue, *self._judge(secret, verb, queue)) for queue in queues]
        # All of them, or it may not: the queue that is refused for the longest says why.
        queue, host, may, since = min(judgements, key=lambda each: (each[2], each[3] if not each[2] else -each[3]))
        if always or let_in != may:
            self._world.emit("judged", host, verb.value, queue, let_in, may, max(since, 0.0))

    def _judge(self, secret: str | None, verb: Verb, queue: str) -> tuple[str, bool, float]:
        """Return whose it is, whether the file as it stood last grants that now, and since when."""
        proof = self._proofs.get(secret or "")
        if proof is None:
            return "nobody", False, 0.0
        now, host = self._world.kernel.now, proof.host
        changed = self._regranted.get(host, 0.0)
        against = [at for at in (proof.void_from, proof.until) if at is not None and now >= at]
        against += [0.0] if proof.good_from is None else []
        principal = self._access.principal(host)
        against += [changed] if principal is None or not principal.may(verb, queue) else []
        if against:
            return host, False, min(against)
        return host, True, max(changed, proof.good_from or 0.0)


class _Issuer:
    """Checks tokens (`queuebell.bridge.access.tokens.Tokens`); its keys may have to be fetched first."""

    def __init__(self, desk: Desk, process: Process) -> None:
        self._desk = desk
        self._draw = process.kernel.chance(f"{process.name}/issuer").random

    def start(self) -> None:
        """Fetch nothing before it is asked for."""

    async def stop(self) -> None:
        """Nothing goes on unasked."""

    async def verify(self, token: str) -> Verified | None:
        if self._draw() < _FETCHED:
            await asyncio.sleep(self._draw() * FETCH_S)
        return self._desk.token(token)


class WatchedFile(AccessWatch):
    """The bridge's access file, and with it what its web server asks before it does anything."""

    def __init__(self, world: World, process: Process, desk: Desk) -> None:
        self.desk = desk
        super().__init__("access.json", wall=lambda: EPOCH + world.kernel.now, clock=process.loop.time)
        self._tokens = cast("Tokens", _Issuer(desk, process))

    def _stamp(self) -> Stamp | None:
        return (self.desk.version, 0, 0, 0)

    def _read(self) -> AccessList:
        listed = access_file.parse(self.desk.text(), self.path)
        self.desk.read = self.desk.version
        return listed

    async def who(self, secret: str | None) -> Identity | None:
        if not secret or secret.startswith(PREFIX):
            return self.identify(secret or "")
        try:
            return await self.identify_token(secret)
        except Mistimed:
            return None

    async def refusal(self, secret: str | None, verb: Verb, queues: Sequence[str]) -> str:
        """Return why somebody may not do this with all of these queues, "" where they may."""
        identity = await self.who(secret)
        code = "unauthenticated" if identity is None else ""
        if identity is not None and not all(identity.principal.may(verb, queue) for queue in queues):
            code = "forbidden"
        self.desk.judged(secret, verb, queues, let_in=not code)
        return code


class WatchedSessions(BrokeredSessions):
    """Sessions over the broker, with somebody who notes whose they are; nothing of them is changed."""

    desk: Desk
    _refused = False

    def _authorize(
        self, way: Any, instance: str, frame: Any, stamp: Any, identity: Identity | None, late: str = ""
    ) -> None:
        outlet = self._outlets.get(instance)
        held = None if outlet is None else outlet.permit
        self._refused = False
        super()._authorize(way, instance, frame, stamp, identity, late)
        outlet = self._outlets.get(instance)
        queues = [each.queue for each in frame.queues]
        if self._refused:
            self.desk.judged(stamp.credential, Verb.TAKE, queues, let_in=False)
        elif outlet is not None and outlet.session is not None and outlet.permit is not held:
            self.desk.opened(outlet.session.number, stamp.credential, queues)

    def _not_allowed(self, way: Any, instance: str, principal: str, queue: str, why: str, late: str = "") -> None:
        self._refused = True
        super()._not_allowed(way, instance, principal, queue, why, late)


async def open_access(world: World, process: Process, desk: Desk, gone: asyncio.Event) -> WatchedFile | None:
    """Return the bridge's view of its access file, which it does not start without; None if told to stop before."""
    while not gone.is_set():
        try:
            return WatchedFile(world, process, desk)
        except ConfigurationError:
            # It ends, and whoever looks after it starts it again.
            world.reached("bridge waits for its access file")
            await asyncio.sleep(RESTART_S)
    return None


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
