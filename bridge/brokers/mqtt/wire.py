"""One MQTT connection: a paho client driven by the event loop, without a thread of its own.

paho's network thread waits with `select`, which fails for good once the process has more than 1024 open files, as a
bridge with many sessions has; and each message would cross threads. Only dialling, which blocks, has a thread.
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

from bridge.brokers.address import Address, TlsOptions
from bridge.brokers.ending import Waiting
from bridge.contract.errors import BusUnavailable

if TYPE_CHECKING:
    from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, MQTTMessageInfo
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

DIAL_S: Final = 4.0
KEEPALIVE_S: Final = 15
TICK_S: Final = 1.0
READS_MAX: Final = 256
READ_BYTES: Final = 64 * 1024
RECEIVE_MAXIMUM: Final = 1000
"""Messages of QoS 1 that the broker may have on their way to us unacknowledged (MQTT 5)."""
_QUICKACK: Final = getattr(socket, "TCP_QUICKACK", None)
DISCONNECT: Final = b"\xe0\x00"
"""The whole packet, the same in 3.1.1 and 5: an orderly end, which keeps the last will from being published."""


class MqttWire:
    """Dials once. ``hear`` gets every message, ``ended`` the reason when an established connection ends."""

    def __init__(
        self,
        address: Address,
        tls: TlsOptions,
        *,
        version: int,
        client_id: str,
        session_s: int,
        user: str | None,
        password: str | None,
        will: tuple[str, bytes] | None,
        hear: Callable[[MQTTMessage], None],
        ended: Callable[[str], None],
    ) -> None:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        self.version = version
        self._address = address
        self._session_s = session_s
        self._hear = hear
        self._ended = ended
        five = version == 5
        client = self.client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if five else session_s == 0,
            protocol=MQTTProtocolVersion.MQTTv5 if five else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,  # whether and when is decided above, once for all brokers
            manual_ack=True,  # B1: acknowledged after the mark
        )
        client.connect_timeout = DIAL_S
        client.max_queued_messages_set(10_000)  # without it, unbounded
        if user is not None:
            client.username_pw_set(user, password)
        if address.encrypted:
            client.tls_set_context(self._remembering(tls.context()))
        if will is not None:
            client.will_set(will[0], will[1], qos=0, retain=False)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_socket_close = self._on_socket_close
        self._receive = client._sock_recv
        client._sock_recv = self._buffered  # type: ignore[method-assign,assignment]
        self._unread = memoryview(b"")
        self._begun: list[ssl.SSLSocket] = []
        self.granted: Waiting[int] = Waiting()
        self.taken: Waiting[int] = Waiting()
        self.packet_max = 268_435_455
        self._awaiting = 0
        self._loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[int] = self._loop.create_future()
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
        """Connect, and return the reason code of the broker's answer (0: welcome). Raises OSError or ValueError."""
        dialled: asyncio.Future[None] = self._loop.create_future()
        # A daemon of its own: a name server that does not answer must not hold up the end of the process.
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
        code = await self._welcome
        self._established = code == 0
        return code

    def publish(self, topic: str, payload: bytes, properties: Properties | None) -> bool:
        """Hand over one message of QoS 0."""
        info = self.client.publish(topic, payload, 0, False, properties)
        if info.rc != 0:
            return False
        self._unsent.append((info, len(payload) + len(topic)))
        self._unsent_bytes += len(payload) + len(topic)
        return True

    async def deliver(self, topic: str, payload: bytes, properties: Properties | None, within_s: float) -> int:
        """Publish with QoS 1 and return the broker's reason code. Raises `BusUnavailable`."""
        # Only while somebody waits: for each message of QoS 0 paho would build a reason code and properties.
        self._awaiting += 1
        self.client.on_publish = self._on_publish
        try:
            info = self.client.publish(topic, payload, 1, False, properties)
            if info.rc != 0:
                raise BusUnavailable("the client library's queue is full")
            return await self.taken.answer(info.mid, within_s, "no acknowledgement from the broker")
        finally:
            self._awaiting -= 1
            if not self._awaiting:
                self.client.on_publish = None

    async def subscribe(self, pattern: str, qos: int, within_s: float) -> int:
        """Subscribe and return what the broker granted (128 and more: nothing). Raises `BusUnavailable`."""
        if self.version == 5:
            from paho.mqtt.subscribeoptions import SubscribeOptions

            # 2: no retained messages; what is heard is what is published from now on
            rc, mid = self.client.subscribe(pattern, options=SubscribeOptions(qos=qos, retainHandling=2))
        else:
            rc, mid = self.client.subscribe(pattern, qos)
        if rc != 0 or mid is None:
            raise BusUnavailable("not connected")
        return await self.granted.answer(mid, within_s, "no acknowledgement of the subscription")

    def unsent(self) -> int:
        """Return how many bytes wait for the socket."""
        waiting = self._unsent
        while waiting and waiting[0][0].is_published():
            self._unsent_bytes -= waiting.popleft()[1]
        return self._unsent_bytes

    async def leave(self) -> None:
        """Tell the broker that this is an orderly end, and wait until it hangs up; the caller bounds this."""
        if self._sock is None or self.client.socket() is None or self.client.want_write():
            return
        # Not paho's disconnect: it closes at once, and with unread messages the kernel then takes back what was sent.
        with contextlib.suppress(OSError, ValueError):
            self._sock.send(DISCONNECT)
            await self._over.wait()

    def abort(self) -> None:
        """Let go of the socket at once, whatever state it is in."""
        self._over.set()
        if not self._welcome.done():
            self._welcome.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._detach()
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.close()

    def _remembering(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Let ``context`` tell what it wraps: paho leaves the socket of a handshake that fails open."""
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
            if self.version == 5:
                from paho.mqtt.packettypes import PacketTypes
                from paho.mqtt.properties import Properties

                properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
                properties.ReceiveMaximum = RECEIVE_MAXIMUM
                if self._session_s:
                    properties.SessionExpiryInterval = self._session_s
                clean = self._session_s == 0
                self.client.connect(
                    self._address.host, self._address.port, KEEPALIVE_S, clean_start=clean, properties=properties
                )
            else:
                self.client.connect(self._address.host, self._address.port, KEEPALIVE_S)
        except Exception as error:  # noqa: BLE001 - handed over to who waits
            fault = error
            for sock in self._begun:
                with contextlib.suppress(OSError):
                    sock.close()
        try:
            self._loop.call_soon_threadsafe(self._dialled, dialled, fault)
        except RuntimeError:  # the loop has ended meanwhile
            self._drop()

    def _dialled(self, dialled: asyncio.Future[None], fault: Exception | None) -> None:
        if dialled.done():  # nobody waits any more
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
        """Read what is there, a bounded number of packets at a time; paho alone would read one per turn."""
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
                # mosquitto does not set TCP_NODELAY: its next packet waits for our acknowledgement, 40 ms otherwise.
                sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            # What TLS has decrypted already wakes no selector.
            if sock is not None and self._address.encrypted and sock.pending():
                self._loop.call_soon(self._readable)
        except Exception as error:  # noqa: BLE001 - a packet that paho cannot read must not end the loop's turn
            self._finish(f"unreadable: {type(error).__name__}: {error}")

    def _buffered(self, size: int) -> bytes:
        """Give paho what it asks for out of one large read: by itself it asks the kernel thrice for each packet."""
        if not self._unread:
            self._unread = memoryview(self._receive(READ_BYTES))
        taken, self._unread = bytes(self._unread[:size]), self._unread[size:]
        return taken

    def _on_want_write(self, client: Client, userdata: object, sock: object) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what waits; what is published in one turn of the loop leaves together."""
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
        self.granted.fail(reason)
        self.taken.fail(reason)
        if not self._welcome.done():
            self._welcome.set_exception(ConnectionError(reason))
        elif self._established:
            self._ended(reason)

    # --- paho's callbacks; none may raise ---------------------------------------------------------------------------

    def _on_connect(
        self, client: Client, userdata: object, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._progress = True
        self.packet_max = getattr(properties, "MaximumPacketSize", self.packet_max)
        if not self._welcome.done():
            self._welcome.set_result(reason.value)

    def _on_disconnect(
        self,
        client: Client,
        userdata: object,
        flags: DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        said = "the broker closed it" if flags.is_disconnect_packet_from_server else "the connection ended"
        self._finish(f"{said}: {reason}")

    def _on_subscribe(
        self, client: Client, userdata: object, mid: int, reasons: list[ReasonCode], properties: Properties | None
    ) -> None:
        self._progress = True
        self.granted.settle(mid, max((reason.value for reason in reasons), default=128))

    def _on_publish(
        self, client: Client, userdata: object, mid: int, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._progress = True
        self.taken.settle(mid, reason.value)

    def _on_message(self, client: Client, userdata: object, message: MQTTMessage) -> None:
        self._progress = True
        self._hear(message)

    def _on_socket_close(self, client: Client, userdata: object, sock: object) -> None:
        # In the dialling thread nothing is attached yet.
        if sock is self._sock:
            self._detach()
