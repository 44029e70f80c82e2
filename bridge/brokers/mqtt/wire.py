"""One MQTT connection: a paho client that the event loop drives, without a thread of its own.

paho's network thread waits with `select`, which fails for good once the process has more than 1024 open files, as a
bridge with many sessions does; and each message would cross threads. Only dialling, which blocks, has a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from queuebell.bridge.brokers.connection import PendingReplies
from queuebell.bridge.brokers.mqtt.access import MqttAccess
from queuebell.bridge.contract.errors import BusUnavailable

if TYPE_CHECKING:
    from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, MQTTMessageInfo
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

PACKET_MAX: Final = 268_435_455
"""The protocol's own limit in bytes."""
TICK_S: Final = 1.0
READS_MAX: Final = 256
READ_BYTES: Final = 64 * 1024
_QUICKACK: Final = getattr(socket, "TCP_QUICKACK", None)
DISCONNECT: Final = b"\xe0\x00"
"""The whole packet, the same in 3.1.1 and 5: an orderly end, which keeps the last will from being published."""


class MqttWire:
    """Dials once. ``on_message`` gets every message, ``on_end`` the reason when an established connection ends."""

    def __init__(
        self,
        access: MqttAccess,
        version: int,
        will: tuple[str, bytes] | None,
        on_message: Callable[[MQTTMessage], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.version = version
        self._access = access
        self._message = on_message
        self._end = on_end
        client = self.client = access.client(version, will)
        tls = access.tls()
        if tls is not None:
            client.tls_set_context(self._remembering(tls))
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_socket_close = self._on_socket_close
        self._receive = client._sock_recv
        client._sock_recv = self._buffered  # type: ignore[method-assign,assignment]
        self._unread = memoryview(b"")
        self._begun: list[ssl.SSLSocket] = []
        self.packet_max = PACKET_MAX
        self._granted: PendingReplies[int] = PendingReplies()
        self._delivered: PendingReplies[int] = PendingReplies()
        self._awaiting = 0
        self._loop = asyncio.get_running_loop()
        self._accepted: asyncio.Future[int] = self._loop.create_future()
        self._established = False
        self._over = asyncio.Event()
        self._progress = False
        self._sock: Any = None
        self._flushing = False
        self._timer: asyncio.TimerHandle | None = None
        self._unsent: deque[tuple[MQTTMessageInfo, int]] = deque()
        self._unsent_bytes = 0
        self._fault = ""

    async def dial(self) -> int:
        """Connect, and return the broker's reason code (0: accepted). Raises OSError or ValueError."""
        dialled: asyncio.Future[None] = self._loop.create_future()
        # A daemon: a name server that does not answer must not delay the end of the process.
        threading.Thread(target=self._dial, args=(dialled,), name="queuebell mqtt dial", daemon=True).start()
        await dialled
        sock: Any = self.client.socket()
        self._sock = sock
        if sock is None:
            raise ConnectionError(self._fault or "the broker closed the connection")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client.on_socket_register_write = self._on_want_write
        self._loop.add_reader(sock, self._readable)
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._flush()
        code = await self._accepted
        self._established = code == 0
        return code

    def publish(self, topic: str, payload: bytes, properties: Properties | None) -> bool:
        """Send one message of QoS 0; return whether paho accepted it."""
        info = self.client.publish(topic, payload, 0, False, properties)
        if info.rc != 0:
            return False
        self._unsent.append((info, len(payload) + len(topic)))
        self._unsent_bytes += len(payload) + len(topic)
        return True

    async def deliver(self, topic: str, payload: bytes, properties: Properties | None, within_s: float) -> int:
        """Publish with QoS 1 and return the broker's reason code. Raises `BusUnavailable`."""
        # Only while a caller waits: paho would build a reason code and properties for each message of QoS 0 too.
        self._awaiting += 1
        self.client.on_publish = self._on_publish
        try:
            info = self.client.publish(topic, payload, 1, False, properties)
            if info.rc != 0:
                raise BusUnavailable("the client library's queue is full")
            return await self._delivered.wait_for(info.mid, within_s, "no acknowledgement from the broker")
        finally:
            self._awaiting -= 1
            if not self._awaiting:
                self.client.on_publish = None

    async def subscribe(self, pattern: str, qos: int, within_s: float) -> int:
        """Subscribe and return the granted QoS, or a reason from 128 on. Raises `BusUnavailable`."""
        if self.version == 5:
            from paho.mqtt.subscribeoptions import SubscribeOptions

            # 2: no retained messages, only those published from now on
            rc, mid = self.client.subscribe(pattern, options=SubscribeOptions(qos=qos, retainHandling=2))
        else:
            rc, mid = self.client.subscribe(pattern, qos)
        if rc != 0 or mid is None:
            raise BusUnavailable("not connected")
        return await self._granted.wait_for(mid, within_s, "no acknowledgement of the subscription")

    def unsent(self) -> int:
        """Return how many bytes wait for the socket."""
        waiting = self._unsent
        while waiting and waiting[0][0].is_published():
            self._unsent_bytes -= waiting.popleft()[1]
        return self._unsent_bytes

    async def leave(self) -> None:
        """Send the broker an orderly end and wait until it hangs up; the caller limits the time."""
        if self._sock is None or self.client.socket() is None or self.client.want_write():
            return
        # Not paho's disconnect: it closes immediately, and the kernel drops sent data where messages are unread.
        with contextlib.suppress(OSError, ValueError):
            self._sock.send(DISCONNECT)
            await self._over.wait()

    def abort(self) -> None:
        """Close the socket immediately, whatever its state."""
        self._over.set()
        if not self._accepted.done():
            self._accepted.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._detach()
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.close()

    def _remembering(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Record the sockets of ``context``: paho leaves the socket of a failed handshake open."""
        wrap = context.wrap_socket

        def wrap_socket(*args: Any, **options: Any) -> ssl.SSLSocket:
            self._begun.append(wrap(*args, **options))
            return self._begun[-1]

        context.wrap_socket = wrap_socket  # type: ignore[method-assign]
        return context

    # --- the thread that dials --------------------------------------------------------------------------------------

    def _dial(self, dialled: asyncio.Future[None]) -> None:
        fault: Exception | None = None
        try:
            self._access.dial(self.client, self.version)
        except Exception as error:  # noqa: BLE001 - raised in `dial`
            fault = error
            for sock in self._begun:
                with contextlib.suppress(OSError):
                    sock.close()
        try:
            self._loop.call_soon_threadsafe(self._dialled, dialled, fault)
        except RuntimeError:  # the loop has ended meanwhile
            self._drop()

    def _dialled(self, dialled: asyncio.Future[None], fault: Exception | None) -> None:
        if dialled.done():  # cancelled meanwhile
            self._drop()
        elif fault is not None:
            dialled.set_exception(fault)
        else:
            dialled.set_result(None)

    def _drop(self) -> None:
        sock = self.client.socket()
        if sock is not None:
            sock.close()

    # --- driven by the event loop -----------------------------------------------------------------------------------

    def _readable(self) -> None:
        """Read up to 256 packets; paho alone would read one per turn of the loop."""
        client = self.client
        try:
            for _ in range(READS_MAX):
                self._progress = False
                if client.loop_read() != 0 or not self._progress:
                    break
            sock: Any = client.socket()
            if sock is not None and self._unread:
                self._loop.call_soon(self._readable)
                return
            if sock is not None and _QUICKACK is not None:
                # mosquitto does not set TCP_NODELAY: its next packet waits for this acknowledgement, 40 ms otherwise.
                sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            # Data that TLS has already decrypted does not wake the selector.
            if sock is not None and self._access.where.encrypted and sock.pending():
                self._loop.call_soon(self._readable)
        except Exception as error:  # noqa: BLE001 - a packet that paho cannot read must not end the loop's turn
            self._finish(f"unreadable: {type(error).__name__}: {error}")

    def _buffered(self, size: int) -> bytes:
        """Serve paho from one large read: by itself it makes three system calls for each packet."""
        if not self._unread:
            self._unread = memoryview(self._receive(READ_BYTES))
        taken, self._unread = bytes(self._unread[:size]), self._unread[size:]
        return taken

    def _on_want_write(self, client: Client, userdata: object, sock: object) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what is queued; messages published in one turn of the loop leave together."""
        self._flushing = False
        client, sock = self.client, self._sock
        if client.socket() is None:
            return
        try:
            client.loop_write()
        except Exception as error:  # noqa: BLE001
            self._finish(f"cannot write: {type(error).__name__}: {error}")
            return
        if client.socket() is None:
            return
        if client.want_write():
            self._loop.add_writer(sock, self._flush)
        else:
            self._loop.remove_writer(sock)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        try:
            self.client.loop_misc()
        except Exception as error:  # noqa: BLE001
            self._finish(f"cannot write: {type(error).__name__}: {error}")

    def _detach(self) -> None:
        if self._sock is not None and self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)

    def _finish(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._over.set()
        self._granted.fail(reason)
        self._delivered.fail(reason)
        if not self._accepted.done():
            self._accepted.set_exception(ConnectionError(reason))
        elif self._established:
            self._end(reason)

    # --- paho's callbacks; none may raise ---------------------------------------------------------------------------

    def _on_connect(
        self, client: Client, userdata: object, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._progress = True
        self.packet_max = getattr(properties, "MaximumPacketSize", self.packet_max)
        if not self._accepted.done():
            self._accepted.set_result(reason.value)

    def _on_disconnect(
        self,
        client: Client,
        userdata: object,
        flags: DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        how = "the broker closed it" if flags.is_disconnect_packet_from_server else "the connection ended"
        self._finish(f"{how}: {reason}")

    def _on_subscribe(
        self, client: Client, userdata: object, mid: int, reasons: list[ReasonCode], properties: Properties | None
    ) -> None:
        self._progress = True
        self._granted.resolve(mid, max((reason.value for reason in reasons), default=128))

    def _on_publish(
        self, client: Client, userdata: object, mid: int, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._progress = True
        self._delivered.resolve(mid, reason.value)

    def _on_message(self, client: Client, userdata: object, message: MQTTMessage) -> None:
        self._progress = True
        self._message(message)

    def _on_socket_close(self, client: Client, userdata: object, sock: object) -> None:
        # In the dialling thread nothing is attached yet.
        if sock is self._sock:
            self._detach()
