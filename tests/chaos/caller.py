"""A holder of a key who comes by every way at once, until standard input says ``stop``; one JSON line an event.

``asked`` is one request: its ``way``, when it ``began`` and was answered (``at``), and the ``status``, 0 where the
connection broke. A session, an event stream or a hello over a broker is such a request too; once let in it is ``heard``
from now and then, and ``ended`` says how. Times are those of the wall clock, which all processes here share.

Standard input: ``slow`` sends half of a put, and never the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp

from queuebell.bridge.contract.errors import ChannelLost
from queuebell.bridge.contract.wire import (
    SUBPROTOCOL,
    BridgeHeartbeat,
    ErrorFrame,
    Hello,
    ListenerHeartbeat,
    Subscription,
    UpFrame,
    Welcome,
    encode_frame,
)
from queuebell.listeners.session.brokered import BrokeredChannel

PAUSE_S = 0.05
BEAT_S = 0.3
PATIENCE_S = 60.0
_STATUS = {"unauthenticated": 401, "forbidden": 403}


@dataclass
class Options:
    """Who it is, and where it comes to."""

    name: str
    url: str
    secret: str
    queues: list[str]
    """Where it puts, in turn, and rings; somebody else takes from there."""
    own: str
    """Where it puts, receives and settles, and what its sessions and streams are about."""
    azure: str
    """Where it puts by the Azure endpoint, with the signature."""
    brokers: dict[str, str] = field(default_factory=dict)
    """Where its sessions over brokers are held, by kind."""

    def arguments(self) -> list[str]:
        """Return the command that starts it."""
        return [sys.executable, "-m", "tests.chaos.caller", json.dumps(asdict(self))]


def say(event: str, **what: Any) -> None:
    """Write one line in one call."""
    os.write(1, json.dumps({"event": event, "at": time.time(), **what}).encode() + b"\n")


class Caller:
    """All that one process asks."""

    def __init__(self, options: Options, client: aiohttp.ClientSession, stranger: aiohttp.ClientSession) -> None:
        self._options = options
        self._client = client
        self._stranger = stranger
        """Gives no key: what it asks is signed."""
        self._number = 0
        self._held: list[dict[str, str]] = []
        self.stopping = False

    def requests(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return what is asked again and again, by name."""
        return {
            "put": self.put,
            "put once": self.put_once,
            "ring": self.ring,
            "look": self.look,
            "take": self.take,
            "azure": self.azure,
        }

    def held(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return what stays open, and is opened again when it has ended."""
        return {
            "websocket": self.websocket,
            "stream": self.stream,
            **{kind: self._over(kind, url) for kind, url in self._options.brokers.items()},
        }

    async def always(self, once: Callable[[], Awaitable[None]]) -> None:
        """Do one of them again and again."""
        while not self.stopping:
            await once()
            await asyncio.sleep(PAUSE_S)

    # Requests ----------------------------------------------------------------------------------------------------

    async def _ask(
        self, way: str, client: aiohttp.ClientSession, method: str, path: str, body: str = "", **more: Any
    ) -> tuple[int, bytes]:
        began = time.time()
        try:
            async with client.request(method, path, **more) as answer:
                status, raw = answer.status, await answer.read()
        except aiohttp.ClientError:
            status, raw = 0, b""
        say("asked", way=way, began=began, status=status, body=body)
        return status, raw

    def _body(self) -> str:
        self._number += 1
        body = f"{self._options.name}-{self._number}"
        # Before it is sent: whatever becomes of it, it is no stranger where it comes out.
        say("attempt", body=body)
        return body

    async def put(self) -> None:
        """Put a message for others."""
        body = self._body()
        queue = self._options.queues[self._number % len(self._options.queues)]
        await self._ask("put", self._client, "POST", f"/v1/queues/{queue}/messages", body, data=body)

    async def put_once(self) -> None:
        """Put a message for itself."""
        body = self._body()
        await self._ask(
            "put once", self._client, "PUT", f"/v1/queues/{self._options.own}/messages/{body}", body, data=body
        )

    async def ring(self) -> None:
        """Publish a trigger."""
        await self._ask("ring", self._client, "POST", f"/v1/triggers/{self._options.queues[0]}")

    async def look(self) -> None:
        """List the queues that it may see."""
        await self._ask("look", self._client, "GET", "/v1/queues")

    async def take(self) -> None:
        """Receive its own messages, and delete them with the next turn."""
        held, self._held = self._held, []
        # Settled even where there is nothing: whether it may is what is asked.
        claims = [{"id": one["id"], "pop_receipt": one["pop_receipt"]} for one in held]
        path = f"/v1/queues/{self._options.own}"
        status, raw = await self._ask("settle", self._client, "POST", f"{path}/settle", json={"delete": claims})
        if status == 200:
            for one, outcome in zip(held, json.loads(raw)["delete"], strict=True):
                if outcome["ok"]:
                    say("done", body=one["body"])
        wanted = {"max": 32, "visibility_timeout_s": 5}
        status, raw = await self._ask("receive", self._client, "POST", f"{path}/receive", json=wanted)
        if status == 200:
            self._held = json.loads(raw)["messages"]

    async def azure(self) -> None:
        """Put a message as an Azure SDK does."""
        body = self._body()
        document = f"<QueueMessage><MessageText>{body}</MessageText></QueueMessage>"
        headers = {"x-ms-version": "2026-04-06"}
        await self._ask("azure", self._stranger, "POST", self._options.azure, body, data=document, headers=headers)

    # What stays open ---------------------------------------------------------------------------------------------

    def _hello(self) -> Hello:
        return Hello(secrets.token_hex(16), self._options.name, [Subscription(self._options.own, 4, own=True)])

    @contextlib.asynccontextmanager
    async def _beating(self, send: Callable[[UpFrame], Any]) -> AsyncIterator[None]:
        async def beat() -> None:
            stamp = 0
            while True:
                stamp += 1
                sent = send(ListenerHeartbeat(stamp, {}))
                if sent is not None:
                    await sent
                await asyncio.sleep(BEAT_S)

        task = asyncio.create_task(beat(), name="heartbeats")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def websocket(self) -> None:
        """Hold a session until the bridge ends it."""
        began = time.time()
        try:
            session = await self._client.ws_connect("/v1/sessions", protocols=(SUBPROTOCOL,))
        except aiohttp.WSServerHandshakeError as error:
            say("asked", way="websocket", began=began, status=error.status)
            return
        await session.send_str(encode_frame(self._hello()).decode())
        welcomed, code = False, 4000
        async with self._beating(lambda frame: session.send_str(encode_frame(frame).decode())):
            async for message in session:
                type_ = json.loads(message.data)["type"]
                if type_ == "welcome":
                    welcomed = True
                    say("asked", way="websocket", began=began, status=200)
                elif type_ == "heartbeat":
                    say("heard", way="websocket")
                elif type_ == "ended":
                    # The wire goes on; of it nothing more is asked here.
                    code = json.loads(message.data)["code"]
                    await session.close()
            else:
                code = code if code != 4000 else session.close_code or 4000
        if welcomed:
            say("ended", way="websocket", how=str(code))
        else:
            say("asked", way="websocket", began=began, status=code - 4000)

    async def stream(self) -> None:
        """Follow wakes until the bridge ends that."""
        began = time.time()
        async with self._client.get("/v1/wakes", params={"queue": self._options.own}) as answer:
            say("asked", way="stream", began=began, status=answer.status)
            if answer.status == 200:
                how = "to its end"
                try:
                    async for line in answer.content:
                        if line.startswith(b"event: wake"):
                            say("heard", way="stream")
                except aiohttp.ClientError as error:
                    how = type(error).__name__
                say("ended", way="stream", how=how)

    def _over(self, kind: str, url: str) -> Callable[[], Awaitable[None]]:
        async def hold() -> None:
            hello = self._hello()
            channel = BrokeredChannel(url, hello.instance, api_key=self._options.secret)
            link = await channel.connect()
            began, welcomed, how = time.time(), False, ""
            try:
                link.send(hello)
                async with self._beating(link.send):
                    while True:
                        frame = await link.receive()
                        if isinstance(frame, Welcome):
                            welcomed = True
                            say("asked", way=kind, began=began, status=200)
                        elif isinstance(frame, BridgeHeartbeat):
                            say("heard", way=kind)
                        elif isinstance(frame, ErrorFrame):
                            how = frame.code
                            if not welcomed:
                                say("asked", way=kind, began=began, status=_STATUS[frame.code])
                                return
            except ChannelLost:
                say("ended", way=kind, how=how)
            finally:
                await link.close()
                await channel.close()

        return hold

    # A put whose body is on its way ------------------------------------------------------------------------------

    async def slow(self) -> None:
        """Send half of a put, say so once it was taken in, and tell of the answer whenever it comes."""
        host, _, port = self._options.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = self._body()
        began = time.time()
        head = (
            f"POST /v1/queues/{self._options.queues[0]}/messages HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Authorization: Bearer {self._options.secret}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body[:-2]}"
        )
        writer.write(head.encode())
        # What was sent first is being read when this one is answered.
        async with self._client.get("/livez") as answer:
            await answer.read()
        say("slow")
        async with asyncio.timeout(PATIENCE_S):
            line = await reader.readline()
        writer.transport.abort()
        say("asked", way="slow", began=began, status=int(line.split()[1]), body=body)


async def run(options: Options) -> None:
    """Ask until told to stop; what is under way then is told of all the same."""
    forever = aiohttp.ClientTimeout(total=None)
    headers = {"Authorization": f"Bearer {options.secret}"}
    async with (
        aiohttp.ClientSession(options.url, headers=headers, timeout=forever) as client,
        aiohttp.ClientSession() as stranger,
        open_input() as lines,
    ):
        caller = Caller(options, client, stranger)
        asking = [asyncio.create_task(caller.always(once), name=way) for way, once in caller.requests().items()]
        holding = [asyncio.create_task(caller.always(once), name=way) for way, once in caller.held().items()]
        for task in (*asking, *holding):
            task.add_done_callback(fail)
        say("up")
        while (line := await lines.readline()).strip() == b"slow":
            holding.append(asyncio.create_task(caller.slow(), name="slow"))
        assert line in (b"stop\n", b""), line
        caller.stopping = True
        await asyncio.wait(asking)
        for task in holding:
            task.cancel()
        await asyncio.wait(holding)
    say("closed")


@contextlib.asynccontextmanager
async def open_input() -> AsyncIterator[asyncio.StreamReader]:
    """Read standard input."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        yield reader
    finally:
        transport.close()


def fail(task: asyncio.Task[None]) -> None:
    """End the process where one of its tasks has failed: whoever waits for its words should not wait on."""
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error)
        os._exit(1)


if __name__ == "__main__":
    asyncio.run(run(Options(**json.loads(sys.argv[1]))))
