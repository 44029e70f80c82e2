"""Sessions over a broker, bridge half: many on one connection, told apart by ``instance`` (S1 to S3).

A listener says hello on ``(prefix, "hello")``, speaks on ``(prefix, "session", instance, "up")`` and hears on
``(..., "down")``. Frames may be lost, repeated and reordered; each carries a sequence number, and what was overtaken
is dropped, except covers, which are facts whenever they come. When a connection breaks, its sessions stay until they
are silent for D, with their wakes in their slots: listeners may come back before.

Where the bridge asks who is there, a hello proves it by the key or token that it carries, and every frame that it is of
its instance by the ticket that this is made of. Whoever hears what sessions are told, and may say hello, can neither
end, nor speak for, nor begin the session of another: the ticket is on the topics that the bridge alone hears. Hellos
and frames count as requests of their principal, and a session as one of its connections.
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

from bridge.access.grants import Verb
from bridge.access.keys import PREFIX, Identity
from bridge.access.quota_guard import PastLimit
from bridge.access.tokens import Mistimed
from bridge.brokers.base import ANY, Broker, Incoming
from bridge.contract.errors import BadInput, QueuebellError
from bridge.contract.framing import VERSION, Stamp, encode_down, instance_of, is_instance, is_will, read_stamp
from bridge.contract.wire import Bye, DownFrame, EmptyReceive, ErrorFrame, Hello, UpFrame, decode_up
from bridge.observe.facts import AccessRefused
from bridge.service.channels.base import FORBIDDEN, OVER, UNAUTHENTICATED

if TYPE_CHECKING:
    from bridge.access.access_watch import AccessWatch, Permit
    from bridge.service.bridge import Bridge
    from bridge.service.sessions import BridgeSession

log = logging.getLogger("queuebell.bridge")

Number = TypeVar("Number", int, float)

SESSIONS_MAX: Final = 50_000
REMEMBERED_MAX: Final = 50_000
"""Instances whose sessions ended: what they said before must not begin a new one."""
ERROR_EVERY_S: Final = 1.0
CHECKS_MAX: Final = 1000
"""Tokens that are checked at once: each may wait for its issuer, and each hello is said again."""
FULL_RETRY_S: Final = 5
_CONFIRMED: Final = 1000
_NOT_GIVEN: Final = "this bridge asks for a key: give the listener one (api_key, QUEUEBELL_API_KEY)"
_NOT_KNOWN: Final = "the key is not known here, was revoked, or has expired"
_NOT_ITS_OWN: Final = "each frame has to show the ticket that its instance is made of"
_PAST_RATE: Final = "slow down: this principal may not say so much; the frame was dropped"


class BusRoute:
    """One bus as sessions see it: a connection now and then."""

    def __init__(self, sessions: BrokeredSessions, prefix: str, kind: str) -> None:
        self.kind = kind
        self.broker: Broker | None = None
        self._sessions = sessions
        self._prefix = prefix

    async def attach(self, broker: Broker) -> None:
        """Go on with a fresh connection. Raises `BusUnavailable`."""
        # Frames first: a listener that says hello next speaks there at once.
        await broker.subscribe((self._prefix, "session", ANY, "up"), self.hear_up)
        self.broker = broker
        await broker.subscribe((self._prefix, "hello"), self.hear_hello)

    def detach(self) -> None:
        """Do without a connection; sessions stay until they are silent for too long."""
        self.broker = None

    def hear_hello(self, incoming: Incoming) -> None:
        """Take what came on the hello topic."""
        self._sessions.hear_hello(self, incoming)

    def hear_up(self, incoming: Incoming) -> None:
        """Take what came on a session's topic."""
        self._sessions.hear_up(self, incoming)


class BrokeredOutlet:
    """The bridge's end of one session."""

    __slots__ = ("_sessions", "counted", "heard", "instance", "leave", "session", "way")

    def __init__(self, sessions: BrokeredSessions, way: BusRoute, instance: str, heard: int) -> None:
        self._sessions = sessions
        self.way = way
        """Where its newest hello came from."""
        self.instance = instance
        self.heard = heard
        """The newest sequence number that came from it."""
        self.session: BridgeSession | None = None
        self.leave: Permit | None = None
        """By whose leave it is open; None where nobody is asked."""
        self.counted: Callable[[], object] = _nothing
        """Called when it has ended: until then it counts as a session of its principal."""

    @property
    def kind(self) -> str:
        """``nats`` or ``mqtt``."""
        return self.way.kind

    def writable(self) -> bool:
        """Nothing is sent into a connection that is broken or behind: there wakes merge in their slots."""
        broker = self.way.broker
        return broker is not None and broker.writable()

    def send(self, frame: DownFrame) -> None:
        """Publish one frame; if it is lost, it heals within its bound (S2)."""
        self._sessions.publish(self.way, self.instance, frame)

    def close(self, code: int, reason: str) -> None:
        """End the session and say so, unless a `bye` was confirmed by one just now."""
        if self._sessions.forget(self) and code != _CONFIRMED:
            self.send(Bye())


class BrokeredSessions:
    """All sessions over the brokers of one bridge that share a prefix; at most ``sessions_max`` of them.

    One for all of them, because brokers may be joined: NATS's own MQTT listener brings every frame over both. The copy
    is known by its sequence number, whichever way it took.
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
        """Return one more way by which listeners may come."""
        return BusRoute(self, self._prefix, kind)

    def publish(self, way: BusRoute, instance: str, frame: DownFrame) -> None:
        """Send one frame, once, in order."""
        if way.broker is not None:
            topic = (self._prefix, "session", instance, "down")
            way.broker.publish(topic, encode_down(frame, instance, next(self._numbers), self._boot))

    def forget(self, outlet: BrokeredOutlet) -> bool:
        """Let a session's instance go; False if it was gone already."""
        if self._outlets.get(outlet.instance) is not outlet:
            return False
        del self._outlets[outlet.instance]
        _remember(self._past, outlet.instance, outlet.heard)
        outlet.counted()
        if outlet.leave is not None:
            outlet.leave.close()
        return True

    async def stop(self) -> None:
        """Let go of hellos that are still being checked; may be called twice."""
        checks = list(self._checks.values())
        for check in checks:
            check.cancel()
        if checks:
            await asyncio.wait(checks)

    # -- hearing -----------------------------------------------------------------------------------------------------

    def hear_hello(self, way: BusRoute, incoming: Incoming) -> None:
        """Take a hello; repeated, it is answered by a welcome again and changes nothing."""
        try:
            stamp = read_stamp(incoming.payload)
            instance = stamp.instance or ""
            if not is_instance(instance):
                return
            if not self._spoken_by_its_own(way, instance, stamp):
                if stamp.ticket is None and instance not in self._outlets:
                    self._error(way, instance, UNAUTHENTICATED, _NOT_ITS_OWN if stamp.credential else _NOT_GIVEN)
                return
            if self._others(way, stamp):
                return
            try:
                frame = decode_up(incoming.payload)
            except BadInput as error:
                self._refuse(way, instance, error)
                return
        except BadInput as error:
            log.debug("a hello that cannot be read: %s", error)
            return
        if isinstance(frame, Hello):
            self._asked(way, instance, frame, stamp)

    def hear_up(self, way: BusRoute, incoming: Incoming) -> None:
        """Take any frame of a session."""
        topic = incoming.topic
        instance = topic[2] if len(topic) == 4 else ""
        if not is_instance(instance):
            return
        try:
            stamp = read_stamp(incoming.payload)
        except BadInput as error:
            if self._spoken_by_its_own(way, instance, Stamp()):
                self._refuse(way, instance, error)
            return
        if not self._spoken_by_its_own(way, instance, stamp):
            return
        try:
            # Asked in this order: only for the instance of its topic has a frame proven whose it is.
            if stamp.instance not in (None, instance) or self._others(way, stamp):
                return
            frame = decode_up(incoming.payload)
        except BadInput as error:
            self._refuse(way, instance, error)
            return
        outlet = self._outlets.get(instance)
        if frame is None:
            if outlet is not None and outlet.leave is not None:
                outlet.leave.request()
            return
        if isinstance(frame, Hello):
            self._asked(way, instance, frame, stamp)
            return
        if outlet is None or outlet.session is None:
            if _stale(stamp, self._past.get(instance)):
                return  # it was said before the session ended
            if self._access is not None:
                self._bridge.emit(AccessRefused("unauthenticated", "", Verb.TAKE.value, "", way.kind))
            if isinstance(frame, Bye):
                # Repeated, because our own got lost on its way back.
                self.publish(way, instance, Bye())
            else:
                self._error(way, instance, "unknown_session", "say hello first")
        elif outlet.leave is not None and not isinstance(frame, Bye) and (wait := outlet.leave.request()):
            # Frames may be lost, and what they say is said again. A `bye` is the last that anybody has to read.
            self._past_limit(way, outlet.leave, instance, _PAST_RATE, wait)
        elif self._fresh(outlet, stamp, frame):
            if isinstance(frame, Bye) and is_will(stamp):
                # A crash: what it held since its last heartbeat is not in this bye, which was written long before.
                self.forget(outlet)
                outlet.session.ended("last will")
            else:
                outlet.session.feed(frame)

    def _others(self, way: BusRoute, stamp: Stamp) -> bool:
        """Say whether a frame is for another bridge; a session that its listener has with us then ends quietly."""
        if stamp.to is None or stamp.to == self._boot:
            return False
        outlet = self._outlets.get(stamp.instance or "")
        if outlet is not None:
            if outlet.session is not None and not _stale(stamp, outlet.heard):
                self.forget(outlet)
                outlet.session.ended("with another bridge")
        elif stamp.instance is not None and is_instance(stamp.instance):
            # If its bridge has gone, this is how it learns that there is another.
            self._error(way, stamp.instance, "unknown_session", "this is another bridge; say hello to change")
        return True

    def _fresh(self, outlet: BrokeredOutlet, stamp: Stamp, frame: UpFrame) -> bool:
        if _stale(stamp, outlet.heard):
            return isinstance(frame, EmptyReceive)
        if stamp.seq is not None:
            outlet.heard = stamp.seq
        return True

    # -- who speaks --------------------------------------------------------------------------------------------------

    def _spoken_by_its_own(self, way: BusRoute, instance: str, stamp: Stamp) -> bool:
        """Say whether a frame is of whoever drew this instance, where anybody is asked; what is not is only counted.

        Whoever shows a wrong one is told nothing: whose instance it is would hear it.
        """
        ticket = stamp.ticket
        if self._access is None or (ticket is not None and hmac.compare_digest(instance_of(ticket), instance)):
            return True
        self._bridge.emit(AccessRefused("unauthenticated", "", Verb.TAKE.value, "", way.kind, _NOT_ITS_OWN))
        return False

    def _asked(self, way: BusRoute, instance: str, frame: Hello, stamp: Stamp) -> None:
        """Take a hello of whoever may say it; a token may have to wait for the keys of its issuer."""
        if stamp.version != VERSION:
            self._error(way, instance, "unsupported", _OTHER_VERSION)
            return
        if self._access is None:
            self._hello(way, instance, frame, stamp, None)
            return
        secret = stamp.credential or ""
        if not secret or secret.startswith(PREFIX):
            self._proven(way, instance, frame, stamp, self._access.identify(secret))
        elif instance not in self._checks:
            # Repeated, it waits for the same answer; of a flood most are dropped, and said again 2 s later.
            if len(self._checks) >= CHECKS_MAX:
                self._error(way, instance, "too_many_requests", "too many tokens are being checked", FULL_RETRY_S)
                return
            check = asyncio.create_task(
                self._check(self._access, way, instance, frame, stamp), name=f"token of {instance[:8]}"
            )
            self._checks[instance] = check
            check.add_done_callback(lambda _: self._checks.pop(instance, None))

    async def _check(self, access: AccessWatch, way: BusRoute, instance: str, frame: Hello, stamp: Stamp) -> None:
        identity, late = None, ""
        try:
            identity = await access.identify_token(stamp.credential or "")
        except Mistimed as error:
            late = str(error)
        self._proven(way, instance, frame, stamp, identity, late)

    def _proven(
        self, way: BusRoute, instance: str, frame: Hello, stamp: Stamp, identity: Identity | None, late: str = ""
    ) -> None:
        """Let a hello begin a session, or change the one there is, as far as its sender may."""
        assert self._access is not None
        outlet = self._outlets.get(instance)
        held = None if outlet is None else outlet.leave
        if identity is None:
            self._not_allowed(way, instance, "", "", late or (_NOT_KNOWN if stamp.credential else _NOT_GIVEN), late)
            return
        name = identity.principal.name
        if held is not None and held.identity.principal.name != name:
            self._not_allowed(way, instance, name, "", "the session of this instance is another's")
            return
        leave = self._access.leave(identity, Verb.TAKE, lambda code: self._over(instance, leave, code))
        queue = leave.refused(each.queue for each in frame.queues)
        if queue is not None or not identity.principal.may(Verb.TAKE):
            leave.close()
            on = queue or "any queue"
            why = f"'take' is not granted on {on}"
            queues, taken = [each.queue for each in frame.queues], leave.instance(frame.instance)
            rejections = self._bridge.scheduler.rejections
            rejections.add(self._bridge.now(), queues, frame.listener, FORBIDDEN, why, instance=taken)
            self._not_allowed(way, instance, name, queue or "", why)
            if outlet is not None:
                outlet.close(OVER[FORBIDDEN].close_code, FORBIDDEN)
                if outlet.session is not None:
                    outlet.session.ended(FORBIDDEN)
            return
        wait = leave.request()
        if wait:
            leave.close()
            self._past_limit(way, leave, instance, _PAST_RATE, wait)
            return
        # What a session is told can be heard by whoever may subscribe to all of them: no messages. Nobody takes over
        # the session of another by its name, whichever way that one came.
        frame = msgspec.structs.replace(frame, instance=leave.instance(frame.instance), accept=[])
        self._hello(way, instance, frame, stamp, leave)

    def _over(self, instance: str, leave: Permit, code: str) -> None:
        outlet = self._outlets.get(instance)
        if outlet is not None and outlet.leave is leave:
            self.publish(outlet.way, instance, ErrorFrame(code, OVER[code].why))
            outlet.close(OVER[code].close_code, code)
            if outlet.session is not None:
                outlet.session.ended(code)

    def _past_limit(self, way: BusRoute, leave: Permit, instance: str, why: str, wait: int) -> None:
        name = leave.identity.principal.name
        self._bridge.emit(AccessRefused("limit", name, Verb.TAKE.value, "", way.kind))
        self._error(way, instance, "too_many_requests", why, wait)

    def _not_allowed(self, way: BusRoute, instance: str, principal: str, queue: str, why: str, late: str = "") -> None:
        reason = FORBIDDEN if principal else UNAUTHENTICATED
        self._bridge.emit(AccessRefused(reason, principal, Verb.TAKE.value, queue, way.kind, late))
        self._error(way, instance, reason, why)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _hello(self, way: BusRoute, instance: str, frame: Hello, stamp: Stamp, leave: Permit | None) -> None:
        """Begin a session, or change the one there is; ``leave`` is closed where neither comes of it."""
        if not self._begun(way, instance, frame, stamp, leave) and leave is not None:
            leave.close()

    def _begun(self, way: BusRoute, instance: str, frame: Hello, stamp: Stamp, leave: Permit | None) -> bool:
        outlet = self._outlets.get(instance)
        if outlet is None:
            if _stale(stamp, self._past.get(instance)):
                return False
            if len(self._outlets) >= self._sessions_max:
                self._error(
                    way, instance, "too_many_requests", "this bridge has all the sessions it may have", FULL_RETRY_S
                )
                return False
            outlet = BrokeredOutlet(self, way, instance, stamp.seq or 0)
            if leave is not None:
                try:
                    outlet.counted = leave.connect()
                except PastLimit as past:
                    self._past_limit(way, leave, instance, str(past), past.retry_after_s)
                    return False
            try:
                outlet.session = self._bridge.connect(outlet)
            except QueuebellError as error:
                log.debug("no session: %s", error)
                outlet.counted()
                return False
            self._outlets[instance] = outlet
        elif self._fresh(outlet, stamp, frame):
            outlet.way = way
        else:
            return False
        if leave is not None:
            if outlet.leave is not None:
                outlet.leave.close()
            outlet.leave = leave
        if outlet.session is not None:
            outlet.session.feed(frame)
        return True

    def _refuse(self, way: BusRoute, instance: str, error: BadInput) -> None:
        """End a session over a frame that is wrong, as a WebSocket session ends."""
        self._error(way, instance, error.code, str(error))
        outlet = self._outlets.get(instance)
        self._bridge.unreadable(None if outlet is None else outlet.session, error)
        if outlet is not None and outlet.session is not None:
            self.forget(outlet)
            outlet.session.ended(error.code)

    def _error(self, way: BusRoute, instance: str, code: str, message: str, retry_after_s: int | None = None) -> None:
        """Tell an instance what is wrong, at most once a second."""
        now = asyncio.get_running_loop().time()
        if now - self._errors.get(instance, now - ERROR_EVERY_S) >= ERROR_EVERY_S:
            _remember(self._errors, instance, now)
            self.publish(way, instance, ErrorFrame(code, message, retry_after_s))


_OTHER_VERSION: Final = f"this worker speaks another version of the protocol than {VERSION}; upgrade it, or the bridge"


def _nothing() -> None:
    """Nobody counts it."""


def _stale(stamp: Stamp, heard: int | None) -> bool:
    return stamp.seq is not None and heard is not None and stamp.seq <= heard


def _remember(kept: OrderedDict[str, Number], instance: str, value: Number) -> None:
    """Keep the newest; what strangers make us remember is bounded."""
    kept[instance] = value
    kept.move_to_end(instance)
    if len(kept) > REMEMBERED_MAX:
        kept.popitem(last=False)
