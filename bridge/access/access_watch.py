"""Apply the access file: reload it when it changes, and end connections that lose their permission."""

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

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_file import FileWatch, Stamp, stamp_of
from queuebell.bridge.access.certificates import Certificate, names_in
from queuebell.bridge.access.grants import Principal, Verb
from queuebell.bridge.access.keys import Access, AccessList, Identity
from queuebell.bridge.access.limits import Allowance, Refusals
from queuebell.bridge.access.quota_guard import PastLimit
from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from queuebell.bridge.access.issuer import IssuerSettings
    from queuebell.bridge.access.sign_in import Login
    from queuebell.bridge.access.tokens import Tokens


log = logging.getLogger("queuebell.access")

End = Callable[[str], None]
"""Ends a connection; gets the code that rejects the same client's requests from now on: ``unauthenticated`` if its
credential was revoked or has expired, ``forbidden`` if a grant was removed."""
CONNECTION_RETRY_S: Final = 5
"""Retry time for a principal at its limit of sessions and streams."""


class Permit:
    """Allows a connection, such as a session, for as long as its principal has the permission."""

    __slots__ = ("_watch", "end", "identity", "queues", "verb")

    def __init__(self, watch: AccessWatch, identity: Identity, verb: Verb | None, end: End) -> None:
        self._watch = watch
        self.identity = identity
        self.verb = verb
        self.end = end
        self.queues: frozenset[str] = frozenset()
        """The queues it uses now."""

    def use_queues(self, queues: Iterable[str]) -> str | None:
        """Set the queues it uses, or return one that is not granted."""
        wanted = frozenset(queues)
        for queue in wanted:
            assert self.verb is not None
            if not self.identity.principal.may(self.verb, queue):
                return queue
        self.queues = wanted
        return None

    def instance(self, given: str) -> str:
        """Return an instance name scoped to the principal, so that no other can take over its session."""
        return hashlib.sha256(f"{self.identity.principal.name}/{given}".encode()).hexdigest()[:32]

    def connect(self) -> Callable[[], None]:
        """Count a session of the principal, as `AccessWatch.connect` does."""
        return self._watch.connect(self.identity.principal)

    def request(self) -> int:
        """Count a request of the principal and return 0, or return the seconds after which to retry."""
        return self._watch.allowance(self.identity.principal).request(self._watch.clock())

    def request_more(self) -> float:
        """Count an admitted request; return the seconds until the next one is within the principal's rate."""
        return self._watch.allowance(self.identity.principal).request_more(self._watch.clock())

    def close(self) -> None:
        """Release the permit after the connection has ended; may be called twice."""
        self._watch.permits.pop(self, None)


class AccessWatch(FileWatch):
    """Watches an access file and holds the permits of open connections; an async context manager.

    If the file becomes invalid, the last valid content stays in effect, which is logged once for each change. The
    constructor raises `ConfigurationError` for an invalid file.
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
        """Wall clock in seconds, by which keys expire."""
        self.clock = clock
        """Monotonic clock in seconds, for limits."""
        self._seen = self._stamp()
        self._access = Access(self._read())
        self._reload = False
        self._tokens = _tokens(issuers, wall)
        self.login = None if self._tokens is None else _login(issuers, self._tokens, wall)
        """Signs users in to the page; None if it is not configured."""
        # When the first open connection's credential expires.
        self._next_end = math.inf
        self.permits: dict[Permit, None] = {}
        # By principal, kept when the file changes.
        self._allowances: dict[str, Allowance] = {}
        self.refusals = Refusals()
        """Delays rejections, on all endpoints."""
        self.invalid_reason: str | None = None
        """Why the current file is invalid; None if it is valid."""

    def identify(self, secret: str) -> Identity | None:
        """Return the identity that a secret proves now, or None."""
        return self._access.identify(secret, self.wall())

    def identify_certificate(self, certificate: Certificate) -> Identity | None:
        """Return the identity that a verified certificate proves now, or None."""
        return self._access.certified(certificate, self.wall())

    def allowance(self, principal: Principal) -> Allowance:
        """Return a principal's usage, with its current limits."""
        found = self._allowances.get(principal.name)
        if found is None:
            found = self._allowances[principal.name] = Allowance()
        if found.limits is not principal.limits:
            found.limit(principal.limits)
        return found

    def connect(self, principal: Principal) -> Callable[[], None]:
        """Count a session or stream of a principal; return a function to call at its end.

        Raises `PastLimit` at the limit.
        """
        allowance = self.allowance(principal)
        if not allowance.connect():
            detail = f"at most {allowance.limits.connections} sessions and streams per principal"
            raise PastLimit(Verb.TAKE, detail, CONNECTION_RETRY_S)
        return allowance.disconnect

    async def identify_token(self, token: str) -> Identity | None:
        """Return the identity that a trusted issuer's token proves, or None; may wait for the issuer's keys.

        Raises `Mistimed` for a token that is only outside its time.
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
        """Return the principal with a name in the current list, or None."""
        return self._access.principal(name)

    def permit(self, identity: Identity, verb: Verb | None, end: End) -> Permit:
        """Return a permit; ``end`` is called within a second once the verb (None: the credential) is revoked."""
        permit = Permit(self, identity, verb, end)
        self.permits[permit] = None
        # The list may have been reloaded since the request was admitted, so check again.
        again = self._access.again(identity, self.wall())
        self._next_end = min(self._next_end, -math.inf if again is None or again != identity else identity.until)
        return permit

    def check(self) -> None:
        """Reload the file if it changed, and end connections without permission or with an expired credential."""
        stamp = self._stamp()
        if stamp == self._seen and not self._reload:
            # Check the sessions, of which there may be ten thousand, only if one can have expired.
            if self.wall() >= self._next_end:
                self._end_unauthorized()
        else:
            # Retry until the file is read.
            self._seen, self._reload = stamp, True
            try:
                self._access = Access(self._read())
                self._reload = False
            except ConfigurationError as error:
                # Retry temporary errors, such as too many open files: a revocation must not wait for the next change.
                self._reload = isinstance(error, access_file.Unreachable)
                if self.invalid_reason != str(error):
                    log.error("%s; the last valid content stays in effect until this is fixed", error)
                self.invalid_reason = str(error)
            else:
                self.invalid_reason = None
                log.info("access list reloaded", extra={"keys": len(self._access)})
                self._end_unauthorized()

    # Subclasses may override these to read another source.

    def _stamp(self) -> Stamp | None:
        return stamp_of(self.path)

    def _read(self) -> AccessList:
        return access_file.read(self.path)

    def _end_unauthorized(self) -> None:
        now = self.wall()
        for permit in list(self.permits):
            again = self._access.again(permit.identity, now)
            if again is not None:
                permit.identity = again
                if permit.verb is None or (
                    permit.use_queues(permit.queues) is None and again.principal.may(permit.verb)
                ):
                    continue
            self.permits.pop(permit, None)
            try:
                permit.end("unauthenticated" if again is None else "forbidden")
            except Exception:
                # The other connections still have to end.
                log.exception("closing a connection that lost its permission failed")
        self._next_end = min((permit.identity.until for permit in self.permits), default=math.inf)


def _tokens(issuers: Sequence[IssuerSettings], wall: Callable[[], float]) -> Tokens | None:
    if not issuers:
        return None
    if importlib.util.find_spec("jwt") is None:
        raise ConfigurationError(f"issuer: the package that verifies tokens is not installed: {install('jwt')}")
    from queuebell.bridge.access.tokens import Tokens

    return Tokens(issuers, wall)


def _login(issuers: Sequence[IssuerSettings], tokens: Tokens, wall: Callable[[], float]) -> Login | None:
    from queuebell.bridge.access import sign_in

    for each in issuers:
        sign_in.check(each)
    found = [each for each in issuers if each.client_id]
    if len(found) > 1:
        raise ConfigurationError("issuer: client_id is set in several tables, but users can sign in at one issuer only")
    if not found:
        return None
    from queuebell.bridge.access.sign_in import Login

    return Login(found[0], tokens, wall)


def certificate_of(peer: Mapping[str, object] | None) -> Certificate | None:
    """Return the verified certificate in the result of `ssl.SSLObject.getpeercert`; None if there is none."""
    ends = peer.get("notAfter") if peer else None
    if peer is None or not isinstance(ends, str):
        return None
    try:
        return Certificate(names_in(peer), float(ssl.cert_time_to_seconds(ends)))
    except ValueError:
        # Without a readable end date the certificate is not accepted.
        return None
