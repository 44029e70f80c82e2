"""What the access file says now: read again as soon as it changes, and told to whatever is open by its leave."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import os
import pathlib
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from bridge.access import access_file
from bridge.access.access_file import FileWatch, Stamp, stamp_of
from bridge.access.certificates import Certificate, names_in
from bridge.access.grants import Principal, Verb
from bridge.access.keys import Access, AccessList, Identity
from bridge.access.limits import Allowance, Refusals
from bridge.access.quota_guard import PastLimit
from bridge.brokers.extras import install
from bridge.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from bridge.access.issuer import IssuerSettings
    from bridge.access.sign_in import Login
    from bridge.access.tokens import Tokens


log = logging.getLogger("queuebell.access")

End = Callable[[str], None]
"""Ends something open; it is told the code by which requests of the same sender are refused from now on:
``unauthenticated`` where what proved them was revoked or has expired, ``forbidden`` where less is granted."""
CONNECTION_RETRY_S: Final = 5
"""What a principal is told to wait that has as many sessions and streams as it may."""


class Permit:
    """Something open that lasts as long as somebody may do what it does, a session say."""

    __slots__ = ("_watch", "end", "identity", "queues", "verb")

    def __init__(self, watch: AccessWatch, identity: Identity, verb: Verb | None, end: End) -> None:
        self._watch = watch
        self.identity = identity
        self.verb = verb
        self.end = end
        self.queues: frozenset[str] = frozenset()
        """Those that it is about by now."""

    def refused(self, queues: Iterable[str]) -> str | None:
        """Take ``queues`` for what it is about from now on, or return the first that is not granted."""
        wanted = frozenset(queues)
        for queue in wanted:
            assert self.verb is not None
            if not self.identity.principal.may(self.verb, queue):
                return queue
        self.queues = wanted
        return None

    def instance(self, given: str) -> str:
        """Return what an instance is called here: nobody takes over the session of another principal by its name."""
        return hashlib.sha256(f"{self.identity.principal.name}/{given}".encode()).hexdigest()[:32]

    def connect(self) -> Callable[[], None]:
        """Count it as a session of its holder; as `AccessWatch.connect`."""
        return self._watch.connect(self.identity.principal)

    def request(self) -> int:
        """Count a request of its holder: 0, or the seconds after which it may come again."""
        return self._watch.allowance(self.identity.principal).request(self._watch.clock())

    def request_more(self) -> float:
        """Count one that is let in; return the seconds after which the next one is within the rate of its holder."""
        return self._watch.allowance(self.identity.principal).request_more(self._watch.clock())

    def close(self) -> None:
        """Say that it has ended by itself; may be called twice."""
        self._watch.leaves.pop(self, None)


class AccessWatch(FileWatch):
    """An access file and what is open by its leave; an async context manager.

    A file that cannot be used any more changes nothing: what it said last holds, and the log says so once for each
    change. Raises `ConfigurationError` when made where it cannot be used from the beginning.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        issuers: Sequence[IssuerSettings] = (),
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = pathlib.Path(path)
        self.wall = wall
        """Seconds of the wall's clock, by which keys expire."""
        self.clock = clock
        """Seconds that do not go back, for limits."""
        self._seen = self._stamp()
        self._access = Access(self._read())
        self._again = False
        self._tokens = _tokens(issuers, wall)
        self.login = None if self._tokens is None else _login(issuers, self._tokens, wall)
        """Where people sign in for the page, None where they cannot."""
        # When the first of what is open ends by itself.
        self._next_end = math.inf
        self.leaves: dict[Permit, None] = {}
        # By the name of a principal, for as long as this is: what it uses is not forgotten when the file changes.
        self._allowances: dict[str, Allowance] = {}
        self.refusals = Refusals()
        """When those who are refused are answered, whichever door they come by."""
        self.trouble: str | None = None
        """Why the file as it stands cannot be used, None while it can."""

    def identify(self, secret: str) -> Identity | None:
        """Return who a secret proves somebody to be now, None where it proves nothing."""
        return self._access.identify(secret, self.wall())

    def identify_certificate(self, certificate: Certificate) -> Identity | None:
        """Return who a verified certificate proves somebody to be now, None where it proves nothing here."""
        return self._access.certified(certificate, self.wall())

    def allowance(self, principal: Principal) -> Allowance:
        """Return what somebody uses of the limits that hold now."""
        found = self._allowances.get(principal.name)
        if found is None:
            found = self._allowances[principal.name] = Allowance()
        if found.limits is not principal.limits:
            found.limit(principal.limits)
        return found

    def connect(self, principal: Principal) -> Callable[[], None]:
        """Count a session or stream of somebody more; returns what is called when it has ended.

        Raises `PastLimit` where there are as many as there may be.
        """
        allowance = self.allowance(principal)
        if not allowance.connect():
            most = f"at most {allowance.limits.connections} sessions and streams of one principal"
            raise PastLimit(Verb.TAKE, most, CONNECTION_RETRY_S)
        return allowance.disconnect

    async def identify_token(self, token: str) -> Identity | None:
        """Return whom a token of a trusted issuer names, None where it proves nothing; may wait for that one's keys.

        Raises `Mistimed` for a good token of another time.
        """
        if self._tokens is None:
            return None
        verified = await self._tokens.verify(token)
        return None if verified is None else self._access.named(verified.principal, verified.until, self.wall())

    async def __aenter__(self) -> Self:
        if self._tokens is not None:
            self._tokens.start()
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        if self._tokens is not None:
            await self._tokens.stop()
        if self.login is not None:
            await self.login.stop()

    def principal(self, name: str) -> Principal | None:
        """Return who is called so by the list as it is now, None where nobody is."""
        return self._access.principal(name)

    def leave(self, identity: Identity, verb: Verb | None, end: End) -> Permit:
        """Have ``end`` called once its holder may not do that any more, within a second; None: has no key any more."""
        given = Permit(self, identity, verb, end)
        self.leaves[given] = None
        # Between a request's admission and this the list may have been read anew, and would not be again.
        again = self._access.again(identity, self.wall())
        self._next_end = min(self._next_end, -math.inf if again is None or again != identity else identity.until)
        return given

    def look(self) -> None:
        """Read the file where it has changed, and end what is not granted any more or has expired."""
        stamp = self._stamp()
        if stamp == self._seen and not self._again:
            # Of ten thousand sessions none is asked about while nothing can have ended.
            if self.wall() >= self._next_end:
                self._end_what_is_over()
        else:
            # Until it is read, whatever keeps us from it.
            self._seen, self._again = stamp, True
            try:
                self._access = Access(self._read())
                self._again = False
            except ConfigurationError as error:
                # Where the process has no file left, say: a revocation must not wait for the next one.
                self._again = isinstance(error, access_file.Unreachable)
                if self.trouble != str(error):
                    log.error("%s; what it said before holds until it can be read", error)
                self.trouble = str(error)
            else:
                self.trouble = None
                log.info("access list read again", extra={"keys": len(self._access)})
                self._end_what_is_over()

    # The file itself, for those whose files are none of the system's.

    def _stamp(self) -> Stamp | None:
        return stamp_of(self.path)

    def _read(self) -> AccessList:
        return access_file.read(self.path)

    def _end_what_is_over(self) -> None:
        now = self.wall()
        for given in list(self.leaves):
            again = self._access.again(given.identity, now)
            if again is not None:
                given.identity = again
                if given.verb is None or (given.refused(given.queues) is None and again.principal.may(given.verb)):
                    continue
            self.leaves.pop(given, None)
            try:
                given.end("unauthenticated" if again is None else "forbidden")
            except Exception:
                # All the others have to end all the same.
                log.exception("what somebody had opened who may not any more could not be ended in order")
        self._next_end = min((given.identity.until for given in self.leaves), default=math.inf)


def _tokens(issuers: Sequence[IssuerSettings], wall: Callable[[], float]) -> Tokens | None:
    if not issuers:
        return None
    if importlib.util.find_spec("jwt") is None:
        raise ConfigurationError(f"issuer: what checks tokens is not installed: {install('jwt')}")
    from bridge.access.tokens import Tokens

    return Tokens(issuers, wall)


def _login(issuers: Sequence[IssuerSettings], tokens: Tokens, wall: Callable[[], float]) -> Login | None:
    from bridge.access import sign_in as login

    for each in issuers:
        login.check(each)
    found = [each for each in issuers if each.client_id]
    if len(found) > 1:
        raise ConfigurationError("issuer: people sign in at one issuer, and client_id stands in several tables")
    if not found:
        return None
    from bridge.access.sign_in import Login

    return Login(found[0], tokens, wall)


def certificate_of(peer: Mapping[str, object] | None) -> Certificate | None:
    """Return what `ssl.SSLObject.getpeercert` tells of a verified certificate, None where its peer showed none."""
    ends = peer.get("notAfter") if peer else None
    if peer is None or not isinstance(ends, str):
        return None
    try:
        return Certificate(names_in(peer), float(ssl.cert_time_to_seconds(ends)))
    except ValueError:
        # A date that cannot be read ends nothing.
        return None
