"""Run the bridge's half of sessions over a broker: many on one connection, identified by ``instance`` (S1 to S3).

A listener sends its hello to ``(prefix, "hello")`` and other frames to ``(prefix, "session", instance, "up")``, and
receives on ``(..., "down")``. Frames may be lost, repeated and reordered. Each has a sequence number, and outdated
frames are dropped, except empty receives, which are valid at any time. When a connection breaks, its sessions and
the wakes in their slots stay until the sessions are silent for D, as listeners may reconnect before.

With authentication, the key or token in a hello proves the principal, and the ticket in every frame proves its
instance, which is derived from it. Tickets travel only on topics that the bridge alone can read. A client that reads
the sessions' "down" topics can therefore not begin, use or end the session of another. Hellos and frames count as
requests of their principal, and a session as one of its connections.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.issuer import Mistimed
from queuebell.bridge.access.keys import PREFIX, Identity
from queuebell.bridge.access.quota_guard import PastLimit
from queuebell.bridge.brokers.base import ANY, Broker, Incoming
from queuebell.bridge.contract.errors import BadInput, QueuebellError
from queuebell.bridge.contract.framing import VERSION, Stamp, encode_down, instance_of, is_instance, is_will, read_stamp
from queuebell.bridge.contract.wire import Bye, DownFrame, EmptyReceive, ErrorFrame, Hello, UpFrame, decode_up
from queuebell.bridge.observe.facts import AccessRefused
from queuebell.bridge.service.channels.base import FORBIDDEN, OVER, UNAUTHENTICATED

if TYPE_CHECKING:
    from queuebell.bridge.access.access_watch import AccessWatch, Permit
    from queuebell.bridge.service.bridge import Bridge
    from queuebell.bridge.service.sessions import BridgeSession

log = logging.getLogger("queuebell.bridge")

Number = TypeVar("Number", int, float)

SESSIONS_MAX: Final = 50_000
REMEMBERED_MAX: Final = 50_000
"""Instances of ended sessions that are kept: their late frames must not begin a new session."""
ERROR_EVERY_S: Final = 1.0
CHECKS_MAX: Final = 1000
"""Token checks at the same time: each may wait for its issuer, and listeners repeat their hello."""
FULL_RETRY_S: Final = 5
_CONFIRMED: Final = 1000
_NOT_GIVEN: Final = "this bridge requires a key: set one for the worker (api_key, QUEUEBELL_API_KEY)"
_NOT_KNOWN: Final = "the key is unknown, was revoked, or has expired"
_NOT_ITS_OWN: Final = "each frame must show the ticket that its instance is derived from"
_PAST_RATE: Final = "slow down: this principal sends too many frames; this one was dropped"


class BusRoute:
    """A bus that sessions use; its connection may come and go."""

    def __init__(self, sessions: BrokeredSessions, prefix: str, kind: str) -> None:
        self.kind = kind
        self.broker: Broker | None = None
        self._sessions = sessions
        self._prefix = prefix

    async def attach(self, broker: Broker) -> None:
        """Continue on a new connection. Raises `BusUnavailable`."""
        # Frames first: a listener may send some immediately after its hello.
        await broker.subscribe((self._prefix, "session", ANY, "up"), self.hear_up)
        self.broker = broker
        await broker.subscribe((self._prefix, "hello"), self.hear_hello)

    def detach(self) -> None:
        """Handle the disconnect; sessions stay until they are silent for too long."""
        self.broker = None

    def hear_hello(self, incoming: Incoming) -> None:
        """Handle a message on the hello topic."""
        self._sessions.hear_hello(self, incoming)

    def hear_up(self, incoming: Incoming) -> None:
        """Handle a message on a session's topic."""
        self._sessions.hear_up(self, incoming)


class BrokeredOutlet:
    """The bridge's end of a session over a broker."""

    __slots__ = ("_sessions", "counted", "heard", "instance", "permit", "session", "way")

    def __init__(self, sessions: BrokeredSessions, route: BusRoute, instance: str, heard: int) -> None:
        self._sessions = sessions
        self.way = route
        """The bus of its newest hello."""
        self.instance = instance
        self.heard = heard
        """The newest sequence number received."""
        self.session: BridgeSession | None = None
        self.permit: Permit | None = None
        """The permit it was opened with; None without authentication."""
        self.counted: Callable[[], object] = _nothing
        """Called at the end; until then it counts as a session of its principal."""

    @property
    def kind(self) -> str:
        """``nats`` or ``mqtt``."""
        return self.way.kind

    def writable(self) -> bool:
        """Return False for a broken or slow connection, so that wakes merge in their slots."""
        broker = self.way.broker
        return broker is not None and broker.writable()

    def send(self, frame: DownFrame) -> None:
        """Publish one frame; the protocol recovers from a lost one within its bound (S2)."""
        self._sessions.publish(self.way, self.instance, frame)

    def close(self, code: int, reason: str) -> None:
        """End the session and send `bye`, unless this answers the listener's `bye`."""
        if self._sessions.forget(self) and code != _CONFIRMED:
            self.send(Bye())


class BrokeredSessions:
    """Holds the sessions over all brokers of a bridge that share a prefix; at most ``sessions_max``.

    One object serves all brokers, as they may be connected: with NATS's MQTT listener each frame arrives over both.
    Sequence numbers identify the copies.
    """

    def __init__(
        self, bridge: Bridge, prefix: str, *, sessions_max: int = SESSIONS_MAX, access: AccessWatch | None = None
    ) -> None:
        self._bridge = bridge
        self._access = access
        self._boot = bridge.boot
        self._prefix = prefix
        self._sessions_max = sessions_max
        self._numbers: Iterator[int] = itertools.count(1)
        self._outlets: dict[str, BrokeredOutlet] = {}
        self._past: OrderedDict[str, int] = OrderedDict()
        self._errors: OrderedDict[str, float] = OrderedDict()
        self._checks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._outlets)

    def way(self, kind: str) -> BusRoute:
        """Return the route for another bus."""
        return BusRoute(self, self._prefix, kind)

    def publish(self, route: BusRoute, instance: str, frame: DownFrame) -> None:
        """Send one frame, once, in order."""
        if route.broker is not None:
            topic = (self._prefix, "session", instance, "down")
            route.broker.publish(topic, encode_down(frame, instance, next(self._numbers), self._boot))

    def forget(self, outlet: BrokeredOutlet) -> bool:
        """Remove a session; return False if it was removed before."""
        if self._outlets.get(outlet.instance) is not outlet:
            return False
        del self._outlets[outlet.instance]
        _remember(self._past, outlet.instance, outlet.heard)
        outlet.counted()
        if outlet.permit is not None:
            outlet.permit.close()
        return True

    async def stop(self) -> None:
        """Cancel pending token checks; may be called twice."""
        checks = list(self._checks.values())
        for check in checks:
            check.cancel()
        if checks:
            await asyncio.wait(checks)

    # -- incoming frames ---------------------------------------------------------------------------------------------

    def hear_hello(self, route: BusRoute, incoming: Incoming) -> None:
        """Handle a hello; a repeated one gets another welcome and changes nothing."""
        try:
            stamp = read_stamp(incoming.payload)
            instance = stamp.instance or ""
            if not is_instance(instance):
                return
            if not self._owns_instance(route, instance, stamp):
                if stamp.ticket is None and instance not in self._outlets:
                    self._error(route, instance, UNAUTHENTICATED, _NOT_ITS_OWN if stamp.credential else _NOT_GIVEN)
                return
            if self._is_for_another(route, stamp):
                return
            try:
                frame = decode_up(incoming.payload)
            except BadInput as error:
                self._refuse(route, instance, error)
                return
        except BadInput as error:
            log.debug("unreadable hello: %s", error)
            return
        if isinstance(frame, Hello):
            self._authenticate(route, instance, frame, stamp)

    def hear_up(self, route: BusRoute, incoming: Incoming) -> None:
        """Handle any frame of a session."""
        topic = incoming.topic
        instance = topic[2] if len(topic) == 4 else ""
        if not is_instance(instance):
            return
        try:
            stamp = read_stamp(incoming.payload)
        except BadInput as error:
            if self._owns_instance(route, instance, Stamp()):
                self._refuse(route, instance, error)
            return
        if not self._owns_instance(route, instance, stamp):
            return
        try:
            # Check the instance first: the ticket proves only the instance in the topic.
            if stamp.instance not in (None, instance) or self._is_for_another(route, stamp):
                return
            frame = decode_up(incoming.payload)
        except BadInput as error:
            self._refuse(route, instance, error)
            return
        outlet = self._outlets.get(instance)
        if frame is None:
            if outlet is not None and outlet.permit is not None:
                outlet.permit.request()
            return
        if isinstance(frame, Hello):
            self._authenticate(route, instance, frame, stamp)
            return
        if outlet is None or outlet.session is None:
            if _stale(stamp, self._past.get(instance)):
                return  # sent before the session ended
            if self._access is not None:
                self._bridge.emit(AccessRefused("unauthenticated", "", Verb.TAKE.value, "", route.kind))
            if isinstance(frame, Bye):
                # Repeated, because the bridge's answer was lost.
                self.publish(route, instance, Bye())
            else:
                self._error(route, instance, "unknown_session", "send a hello first")
        elif outlet.permit is not None and not isinstance(frame, Bye) and (wait := outlet.permit.request()):
            # A dropped frame is repeated by its listener. A `bye` is exempt, as it is the last frame.
            self._past_limit(route, outlet.permit, instance, _PAST_RATE, wait)
        elif self._fresh(outlet, stamp, frame):
            if isinstance(frame, Bye) and is_will(stamp):
                # A crash: this bye was written at the start and lacks the work held since then.
                self.forget(outlet)
                outlet.session.ended("last will")
            else:
                outlet.session.feed(frame)

    def _is_for_another(self, route: BusRoute, stamp: Stamp) -> bool:
        """Return whether a frame is for another bridge; its listener's session here then ends without a frame."""
        if stamp.to is None or stamp.to == self._boot:
            return False
        outlet = self._outlets.get(stamp.instance or "")
        if outlet is not None:
            if outlet.session is not None and not _stale(stamp, outlet.heard):
                self.forget(outlet)
                outlet.session.ended("with another bridge")
        elif stamp.instance is not None and is_instance(stamp.instance):
            # If its bridge is gone, this shows the listener that another one is there.
            self._error(
                route, stamp.instance, "unknown_session", "this is another bridge; send a hello to switch to it"
            )
        return True

    def _fresh(self, outlet: BrokeredOutlet, stamp: Stamp, frame: UpFrame) -> bool:
        if _stale(stamp, outlet.heard):
            return isinstance(frame, EmptyReceive)
        if stamp.seq is not None:
            outlet.heard = stamp.seq
        return True

    # -- authentication ----------------------------------------------------------------------------------------------

    def _owns_instance(self, route: BusRoute, instance: str, stamp: Stamp) -> bool:
        """Return whether the ticket belongs to this instance; always True without authentication.

        A wrong ticket is only counted: an answer would reach the instance's owner instead of the sender.
        """
        ticket = stamp.ticket
        if self._access is None or (ticket is not None and hmac.compare_digest(instance_of(ticket), instance)):
            return True
        self._bridge.emit(AccessRefused("unauthenticated", "", Verb.TAKE.value, "", route.kind, _NOT_ITS_OWN))
        return False

    def _authenticate(self, route: BusRoute, instance: str, frame: Hello, stamp: Stamp) -> None:
        """Authenticate a hello; checking a token may wait for its issuer's keys."""
        if stamp.version != VERSION:
            self._error(route, instance, "unsupported", _OTHER_VERSION)
            return
        if self._access is None:
            self._hello(route, instance, frame, stamp, None)
            return
        secret = stamp.credential or ""
        if not secret or secret.startswith(PREFIX):
            self._authorize(route, instance, frame, stamp, self._access.identify(secret))
        elif instance not in self._checks:
            # A repeated hello shares the check. Beyond the limit hellos are dropped; listeners repeat them after 2 s.
            if len(self._checks) >= CHECKS_MAX:
                self._error(route, instance, "too_many_requests", "too many tokens are being checked", FULL_RETRY_S)
                return
            check = asyncio.create_task(
                self._check(self._access, route, instance, frame, stamp), name=f"token of {instance[:8]}"
            )
            self._checks[instance] = check
            check.add_done_callback(lambda _: self._checks.pop(instance, None))

    async def _check(self, access: AccessWatch, route: BusRoute, instance: str, frame: Hello, stamp: Stamp) -> None:
        identity, late = None, ""
        try:
            identity = await access.identify_token(stamp.credential or "")
        except Mistimed as error:
            late = str(error)
        self._authorize(route, instance, frame, stamp, identity, late)

    def _authorize(
        self, route: BusRoute, instance: str, frame: Hello, stamp: Stamp, identity: Identity | None, late: str = ""
    ) -> None:
        """Begin or change a session for an authenticated hello, if its principal may."""
        assert self._access is not None
        outlet = self._outlets.get(instance)
        current = None if outlet is None else outlet.permit
        if identity is None:
            self._not_allowed(route, instance, "", "", late or (_NOT_KNOWN if stamp.credential else _NOT_GIVEN), late)
            return
        name = identity.principal.name
        if current is not None and current.identity.principal.name != name:
            self._not_allowed(route, instance, name, "", "this instance belongs to another principal")
            return
        permit = self._access.permit(identity, Verb.TAKE, lambda code: self._revoked(instance, permit, code))
        queue = permit.use_queues(each.queue for each in frame.queues)
        if queue is not None or not identity.principal.may(Verb.TAKE):
            permit.close()
            on = queue or "any queue"
            why = f"'take' is not granted on {on}"
            queues, taken = [each.queue for each in frame.queues], permit.instance(frame.instance)
            rejections = self._bridge.scheduler.rejections
            rejections.add(self._bridge.now(), queues, frame.listener, FORBIDDEN, why, instance=taken)
            self._not_allowed(route, instance, name, queue or "", why)
            if outlet is not None:
                outlet.close(OVER[FORBIDDEN].close_code, FORBIDDEN)
                if outlet.session is not None:
                    outlet.session.ended(FORBIDDEN)
            return
        wait = permit.request()
        if wait:
            permit.close()
            self._past_limit(route, permit, instance, _PAST_RATE, wait)
            return
        # Other clients may be able to read a session's frames, so they carry no messages. The permit scopes the
        # instance, so that no principal takes over another's session by its name.
        frame = msgspec.structs.replace(frame, instance=permit.instance(frame.instance), accept=[])
        self._hello(route, instance, frame, stamp, permit)

    def _revoked(self, instance: str, permit: Permit, code: str) -> None:
        outlet = self._outlets.get(instance)
        if outlet is not None and outlet.permit is permit:
            self.publish(outlet.way, instance, ErrorFrame(code, OVER[code].why))
            outlet.close(OVER[code].close_code, code)
            if outlet.session is not None:
                outlet.session.ended(code)

    def _past_limit(self, route: BusRoute, permit: Permit, instance: str, why: str, wait: int) -> None:
        name = permit.identity.principal.name
        self._bridge.emit(AccessRefused("limit", name, Verb.TAKE.value, "", route.kind))
        self._error(route, instance, "too_many_requests", why, wait)

    def _not_allowed(
        self, route: BusRoute, instance: str, principal: str, queue: str, why: str, late: str = ""
    ) -> None:
        reason = FORBIDDEN if principal else UNAUTHENTICATED
        self._bridge.emit(AccessRefused(reason, principal, Verb.TAKE.value, queue, route.kind, late))
        self._error(route, instance, reason, why)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _hello(self, route: BusRoute, instance: str, frame: Hello, stamp: Stamp, permit: Permit | None) -> None:
        """Begin or change a session; close ``permit`` if neither happens."""
        if not self._begin(route, instance, frame, stamp, permit) and permit is not None:
            permit.close()

    def _begin(self, route: BusRoute, instance: str, frame: Hello, stamp: Stamp, permit: Permit | None) -> bool:
        outlet = self._outlets.get(instance)
        if outlet is None:
            if _stale(stamp, self._past.get(instance)):
                return False
            if len(self._outlets) >= self._sessions_max:
                self._error(
                    route, instance, "too_many_requests", "this bridge has reached its limit of sessions", FULL_RETRY_S
                )
                return False
            outlet = BrokeredOutlet(self, route, instance, stamp.seq or 0)
            if permit is not None:
                try:
                    outlet.counted = permit.connect()
                except PastLimit as past:
                    self._past_limit(route, permit, instance, str(past), past.retry_after_s)
                    return False
            try:
                outlet.session = self._bridge.connect(outlet)
            except QueuebellError as error:
                log.debug("no session: %s", error)
                outlet.counted()
                return False
            self._outlets[instance] = outlet
        elif self._fresh(outlet, stamp, frame):
            outlet.way = route
        else:
            return False
        if permit is not None:
            if outlet.permit is not None:
                outlet.permit.close()
            outlet.permit = permit
        if outlet.session is not None:
            outlet.session.feed(frame)
        return True

    def _refuse(self, route: BusRoute, instance: str, error: BadInput) -> None:
        """End a session because of an invalid frame, as a WebSocket session ends."""
        self._error(route, instance, error.code, str(error))
        outlet = self._outlets.get(instance)
        self._bridge.unreadable(None if outlet is None else outlet.session, error)
        if outlet is not None and outlet.session is not None:
            self.forget(outlet)
            outlet.session.ended(error.code)

    def _error(self, route: BusRoute, instance: str, code: str, message: str, retry_after_s: int | None = None) -> None:
        """Send an instance an error, at most once a second."""
        now = asyncio.get_running_loop().time()
        if now - self._errors.get(instance, now - ERROR_EVERY_S) >= ERROR_EVERY_S:
            _remember(self._errors, instance, now)
            self.publish(route, instance, ErrorFrame(code, message, retry_after_s))


_OTHER_VERSION: Final = f"this worker uses another protocol version than {VERSION}; upgrade it, or the bridge"


def _nothing() -> None:
    """No-op."""


def _stale(stamp: Stamp, heard: int | None) -> bool:
    return stamp.seq is not None and heard is not None and stamp.seq <= heard


def _remember(kept: OrderedDict[str, Number], instance: str, value: Number) -> None:
    """Store a value and drop the oldest, so that unknown clients cannot fill the memory."""
    kept[instance] = value
    kept.move_to_end(instance)
    if len(kept) > REMEMBERED_MAX:
        kept.popitem(last=False)
