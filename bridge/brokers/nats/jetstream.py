"""A durable consumer of a JetStream stream: messages stay in the stream until they are acknowledged (B1).

A pull consumer, for a push consumer stays bound to a half-open connection until the server gives that up, and until
then refuses its owner's next one. Pulled here by hand, for the library's `fetch` waits for a full batch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

from bridge.brokers.ending import Ending
from bridge.contract.errors import BusUnavailable

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

BATCH: Final = 512
EXPIRES_S: Final = 30
HEARTBEAT_S: Final = 5
UNACKNOWLEDGED_MAX: Final = 10_000
AGAIN_S: Final = 1.0
"""The pause before a request that the server could not serve is repeated."""
UNANSWERED_MAX: Final = 15
"""How many requests in a row may find no consumer. Servers elect a new leader in less time; the connection also carries
sessions, so it must not end for that."""
_GONE = ("consumer deleted", "consumer not found", "stream deleted")


class Sender(Protocol):
    """What this needs of the connection."""

    def send(self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None) -> bool:
        """Publish by the text of a subject."""
        ...


class Durable:
    """One durable consumer; ``inbox`` is where its messages are to be subscribed before `pull`."""

    def __init__(self, stream: str, durable: str, base: str, sender: Sender, ending: Ending) -> None:
        self._stream = stream
        self._durable = durable
        self._base = base
        self._sender = sender
        self._ending = ending
        self._number = 0
        self._left = 0
        self._heard = False
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self.inbox = f"{base}.*"

    async def create(self, client: Client, subject: str, ack_wait_s: float) -> None:
        """Make the consumer unless it is there. Raises `BusUnavailable` without the stream or JetStream."""
        from nats.errors import Error
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        config = ConsumerConfig(
            durable_name=self._durable,
            filter_subject=subject,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ack_wait_s,
            max_ack_pending=UNACKNOWLEDGED_MAX,
        )
        try:
            await client.jsm(timeout=2).add_consumer(self._stream, config)
        except (Error, ValueError) as error:
            said = str(error) or type(error).__name__
            raise BusUnavailable(f"JetStream: no consumer {self._durable} of stream {self._stream}: {said}") from None

    def pull(self) -> None:
        """Ask for the next messages; there is one such request at a time."""
        self._number += 1
        self._left = BATCH
        request = {"batch": BATCH, "expires": EXPIRES_S * 10**9, "idle_heartbeat": HEARTBEAT_S * 10**9}
        self._sender.send(self._next, json.dumps(request).encode(), f"{self._base}.{self._number}")
        self._expect()

    def hearing(self, heard: Callable[[Msg], Awaitable[None]]) -> Callable[[Msg], Awaitable[None]]:
        """Return the callback for `inbox`: messages go to ``heard``, the server's own words are dealt with here."""
        base = self._base + "."

        async def either(msg: Msg) -> None:
            if msg.subject.startswith(base):
                self._status(msg)
                return
            self._left -= 1
            self._heard = True
            await heard(msg)
            if self._left <= 0:
                self.pull()

        return either

    def delivery(self, reply: str) -> tuple[bool, Callable[[], None]]:
        """Return, from where the acknowledgement goes, whether this is a copy, and what acknowledges it."""
        # $JS.ACK.<stream>.<consumer>.<delivered>..., since 2.3 optionally with domain and account before the stream
        parts = reply.split(".")
        delivered = parts[4] if len(parts) == 9 else parts[6]

        def acknowledge() -> None:
            # Lost with the connection: then it comes again, and is the same mark (B13).
            self._sender.send(reply, b"+ACK")

        return delivered != "1", acknowledge

    def stop(self) -> None:
        """Ask for nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _status(self, msg: Msg) -> None:
        headers = msg.headers or {}
        if msg.subject.rpartition(".")[2] != str(self._number):
            return  # of a request given up before
        self._unanswered = self._unanswered + 1 if headers.get("Status") == "503" else 0
        if headers.get("Status") == "100":
            self._expect()
            return
        description = headers.get("Description", "").lower()
        if any(words in description for words in _GONE):
            self._ending.tell(f"JetStream: {description}: {self._durable} of stream {self._stream}")
        elif self._unanswered >= UNANSWERED_MAX:
            # The consumer was deleted between two requests, so the server reports no deletion.
            self._ending.tell(f"JetStream: the consumer {self._durable} of stream {self._stream} no longer answers")
        elif headers.get("Status") in {"404", "408"}:
            self.pull()
        else:  # 409 and 503: the server is moving or stopping the consumer; ask again, but not at once
            self._expect(AGAIN_S)

    def _expect(self, within_s: float = 2.5 * HEARTBEAT_S) -> None:
        """Ask again when nothing has come for so long, not even a heartbeat."""
        self.stop()
        if self._ending.reason is None:
            self._timer = asyncio.get_running_loop().call_later(within_s, self._late)

    def _late(self) -> None:
        if self._heard:  # heartbeats come only where messages do not
            self._heard = False
            self._expect()
        elif self._ending.reason is None:
            self.pull()
