"""Sessions over a broker, listener half: the worker reaches the broker that it already has, and no bridge directly.

A link is one connection to the broker. It repeats its hello until a bridge sends welcome, numbers its frames, drops
frames that were overtaken, and listens to one bridge: the one whose welcome came first.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from queuebell.bridge.brokers import broker_maker
from queuebell.bridge.brokers.address import take_prefix
from queuebell.bridge.brokers.base import Broker, Incoming, Topic
from queuebell.bridge.brokers.credential import ApiKey, Credential
from queuebell.bridge.contract.errors import BadInput, BusUnavailable, ChannelLost, ConfigurationError, KeyUnavailable
from queuebell.bridge.contract.framing import VERSION, Stamp, encode_up, encode_will, instance_of, read_stamp, seq_of
from queuebell.bridge.contract.wire import (
    Bye,
    DownFrame,
    ErrorFrame,
    Hello,
    ListenerHeartbeat,
    UpFrame,
    Wake,
    Welcome,
    decode_down,
)
from queuebell.listeners.session.channel import Link

log = logging.getLogger("queuebell.listener")

HELLO_EVERY_S: Final = 2.0
"""A: how often hello is repeated until a welcome comes (S2)."""
DOUBT_S: Final = 0.5
"""How long this session's bridge may take to prove itself after another one reports an unknown session."""
CONNECT_WITHIN_S: Final = 5.0
CLOSE_WITHIN_S: Final = 2.5
FRAMES_MAX: Final = 10_000
_NOT_ALLOWED: Final = ("unauthenticated", "forbidden")


_OTHER_VERSION = f"the bridge speaks another version of the protocol than {VERSION}; upgrade it, or the worker"


class BrokeredLink:
    """One session over one connection to the broker."""

    def __init__(
        self,
        broker: Broker,
        prefix: str,
        instance: str,
        connection: int,
        *,
        credential: Credential | None = None,
        ticket: str | None = None,
    ) -> None:
        self._broker = broker
        self._credential = credential
        self._ticket = ticket
        self._instance = instance
        self._connection = connection
        self._hello_topic: Topic = (prefix, "hello")
        self._up_topic: Topic = (prefix, "session", instance, "up")
        self._loop = asyncio.get_running_loop()
        self._sent = 0
        self._boot: str | None = None
        self._met = False
        """Whether a bridge ever said welcome on this connection."""
        self._heard = 0
        self._heard_at = 0.0
        self._beaten_at = 0.0
        self._parting = False
        self._hello: Hello | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._doubt_timer: asyncio.TimerHandle | None = None
        self._frames: deque[DownFrame] = deque()
        self._lost: str | None = None
        self._something = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    # -- the link ----------------------------------------------------------------------------------------------------

    def send(self, frame: UpFrame) -> None:
        """Publish one frame; a hello is repeated until it is answered."""
        if self._lost is not None:
            return
        if isinstance(frame, Hello):
            if not self._parting:
                self._greet(frame)
            return
        if self._boot is None and not isinstance(frame, Bye):
            # Between two bridges: the next one has its own generations, and would misread these (I3).
            return
        if isinstance(frame, ListenerHeartbeat):
            if self._beaten_at <= self._heard_at:
                # The oldest that is unanswered: an answer to it proves our bridge, see `_doubt`.
                self._beaten_at = self._loop.time()
        elif isinstance(frame, Bye):
            self._parting = True
            self._stop_greeting()
        self._publish(self._up_topic, frame)

    def hand_over(self, hear: Callable[[Wake], None]) -> None:
        """Do nothing: they come by `receive`."""

    async def receive(self) -> DownFrame:
        """Wait for the next frame. Raises `ChannelLost` once the connection is broken or the bridge ended it."""
        while not self._frames:
            if self._lost is not None:
                raise ChannelLost(self._lost)
            self._something.clear()
            await self._something.wait()
        return self._frames.popleft()

    async def close(self) -> None:
        """Flush what was sent and leave the broker in order, so that it publishes no last will.

        A session that no `bye` ended ends like that of a closed WebSocket: the link publishes the will itself.
        """
        if self._sent and not self._parting:
            self._parting = True
            self._broker.publish(self._up_topic, encode_will(self._instance, self._connection, ticket=self._ticket))
        self._end("closed")
        self._stop_greeting()
        if self._doubt_timer is not None:
            self._doubt_timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await _close(self._broker)

    def watch(self) -> None:
        """Begin to listen for the end of the connection."""
        self._watch = self._loop.create_task(self._watch_broker(), name=f"broker of {self._instance[:8]}")

    async def _watch_broker(self) -> None:
        self._end(await self._broker.broken())

    def _end(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            self._something.set()

    # -- up ----------------------------------------------------------------------------------------------------------

    def _greet(self, frame: Hello) -> None:
        self._stop_greeting()
        self._hello = msgspec.structs.replace(frame, instance=self._instance)
        self._repeat_hello()

    def _repeat_hello(self) -> None:
        if self._hello is None or self._lost is not None:
            return
        try:
            # Asked for each time, for tokens expire; never sent where others could read it on its way.
            credential = self._credential.secret() if self._credential is not None else None
        except KeyUnavailable as error:
            self._end(str(error))
        else:
            self._publish(self._hello_topic, self._hello, credential)
            self._hello_timer = self._loop.call_later(HELLO_EVERY_S, self._repeat_hello)

    def _stop_greeting(self) -> None:
        self._hello = None
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None

    def _publish(self, topic: Topic, frame: UpFrame, credential: str | None = None) -> None:
        self._sent += 1
        seq = seq_of(self._connection, self._sent)
        # Lost frames heal (S2); a broken connection shows in `receive`.
        self._broker.publish(
            topic,
            encode_up(frame, self._instance, seq, self._boot, ticket=self._ticket, credential=credential),
        )

    # -- down --------------------------------------------------------------------------------------------------------

    def hear(self, incoming: Incoming) -> None:
        """Handle a message on this session's topic; drop what is not meant for it."""
        try:
            stamp = read_stamp(incoming.payload)
            frame = decode_down(incoming.payload)
        except BadInput as error:
            log.warning("the bridge sent a frame that cannot be read: %s", error)
            return
        if frame is None or self._lost is not None or stamp.instance not in (None, self._instance):
            return
        if isinstance(frame, Welcome) and stamp.version != VERSION:
            frame = ErrorFrame("unsupported", _OTHER_VERSION)
        if not self._is_ours(frame, stamp):
            return
        if stamp.seq is not None and self._boot is not None:
            # Between two bridges there is no order: the next one has its own numbers.
            if stamp.seq <= self._heard:
                return
            self._heard = stamp.seq
        self._heard_at = self._loop.time()
        self._take(frame)
        if isinstance(frame, ErrorFrame) and frame.code in _NOT_ALLOWED and self._met and self._boot is None:
            # After a restart, for example, the bridge rejects this worker: only a new link reports that as a rejection.
            self._end(frame.message)

    def _is_ours(self, frame: DownFrame, stamp: Stamp) -> bool:
        """Return whether a frame is from this session's bridge: the first that sent a welcome."""
        if self._boot is None:
            if isinstance(frame, Welcome):
                self._boot, self._heard, self._met = frame.boot, 0, True
                return True
            return isinstance(frame, ErrorFrame) and frame.code != "unknown_session"
        if stamp.boot is None or stamp.boot == self._boot:
            return True
        if isinstance(frame, ErrorFrame) and frame.code == "unknown_session":
            self._doubt()
        return False

    def _take(self, frame: DownFrame) -> None:
        if isinstance(frame, Welcome):
            self._stop_greeting()
        elif isinstance(frame, Bye) and not self._parting:
            self._frames.append(frame)
            self._end("the bridge ended the session")
            return
        elif isinstance(frame, ErrorFrame) and frame.code == "unknown_session":
            # The bridge that answers the hello which now follows takes the session.
            self._boot = None
        if len(self._frames) < FRAMES_MAX:
            self._frames.append(frame)
            self._something.set()

    def _doubt(self) -> None:
        """Another bridge does not know us: fine while ours lives, but after a restart ours is gone (S2)."""
        if self._doubt_timer is None:
            self._doubt_timer = self._loop.call_later(DOUBT_S, self._decide)

    def _decide(self) -> None:
        self._doubt_timer = None
        if self._lost is None and self._boot is not None and self._beaten_at > self._heard_at:
            self._boot = None
            self._frames.append(
                ErrorFrame("unknown_session", "the bridge of this session does not answer, and another one does")
            )
            self._something.set()


class BrokeredChannel:
    """A way to a bridge by the URL of a broker, for one listener.

    Raises `ConfigurationError` for a URL that is none. ``name`` is what the broker shows of the connection; ``make``
    gives a connection to it each time, where it is not to be opened by its address. ``api_key`` is for a bridge that
    asks for one: each hello carries it, and only over a way to the broker that others cannot read.
    """

    def __init__(
        self,
        url: str,
        instance: str,
        *,
        name: str = "queuebell-listener",
        make: Callable[[], Broker] | None = None,
        api_key: ApiKey = None,
    ) -> None:
        self._url, self._prefix = take_prefix(url)
        self._instance = instance
        self._connections = 0
        self._stood = False
        self._open = make or broker_maker(self._url, name=name, prefix=self._prefix)
        broker = self._open()
        self._address = broker.address
        credential = Credential(broker, api_key)
        self._credential = credential if credential else None
        self._ticket = secrets.token_hex(16) if credential else None
        if self._ticket is not None:
            # An instance that others may read, and only this worker can prove.
            self._instance = instance_of(self._ticket)

    def __str__(self) -> str:
        return self._address

    async def connect(self) -> Link:
        """Connect, and subscribe before a bridge can answer. Raises `ChannelLost`."""
        connection, self._connections = self._connections, self._connections + 1
        up: Topic = (self._prefix, "session", self._instance, "up")
        will = encode_will(self._instance, connection, ticket=self._ticket)
        broker = self._open()
        link = BrokeredLink(
            broker, self._prefix, self._instance, connection, credential=self._credential, ticket=self._ticket
        )
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await broker.connect(will=(up, will))
                if self._credential is not None and not broker.private:
                    raise BusUnavailable(
                        "the connection to this broker server is not encrypted, so the key was not sent; use tls://"
                    )
                await broker.subscribe((self._prefix, "session", self._instance, "down"), link.hear)
        except BaseException as error:
            await _close(broker)
            if isinstance(error, ConfigurationError) and not self._stood:
                raise
            if isinstance(error, BusUnavailable | ConfigurationError | OSError):
                raise ChannelLost(f"cannot connect to the broker: {str(error) or 'time-out'}") from error
            raise
        self._stood = True
        link.watch()
        return link

    async def close(self) -> None:
        """Nothing is held between links."""


async def _close(broker: Broker) -> None:
    try:
        async with asyncio.timeout(CLOSE_WITHIN_S):
            await broker.close()
    except TimeoutError:
        log.warning("the connection to the broker did not close in time and was abandoned")
