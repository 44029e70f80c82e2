"""KEDA as a client: what its own compiler makes of the protocol, and HTTP/2 by hand for what no client would do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import pathlib
import struct
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any, Self

import grpc
from grpc import aio
from grpc_tools import protoc

from queuebell.bridge.http.server.sockets import listen
from queuebell.bridge.keda.server import KedaServer
from queuebell.bridge.service.bridge import Bridge

PROTO = pathlib.Path(__file__).with_name("externalscaler.proto")
QUEUE = "billing/orders"
METRIC = "queuebell-billing-orders"


@functools.cache
def compiled() -> tuple[Any, Any]:
    """Return the modules of messages and of the service's client."""
    with tempfile.TemporaryDirectory() as folder:
        made = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
        assert protoc.main(["protoc", f"-I{PROTO.parent}", *made, PROTO.name]) == 0
        names = ("externalscaler_pb2", "externalscaler_pb2_grpc")
        for name in names:
            spec = importlib.util.spec_from_file_location(name, f"{folder}/{name}.py")
            assert spec is not None and spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    return tuple(sys.modules[name] for name in names)  # type: ignore[return-value]


class Keda:
    """One of KEDA's connections to a scaler."""

    def __init__(self, channel: aio.Channel) -> None:
        self.messages, services = compiled()
        self.stub = services.ExternalScalerStub(channel)

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, server: KedaServer, credentials: Any = None) -> AsyncIterator[Self]:
        """Connect."""
        make = aio.insecure_channel if credentials is None else functools.partial(aio.secure_channel)
        given = () if credentials is None else (credentials,)
        async with make(f"127.0.0.1:{server.port}", *given) as channel:
            yield cls(channel)

    def ref(self, queue: str | None = QUEUE, **metadata: str) -> Any:
        """Return a ScaledObject with this metadata."""
        if queue is not None:
            metadata["queue"] = queue
        return self.messages.ScaledObjectRef(name="orders", namespace="shop", scalerMetadata=metadata)

    async def active(self, queue: str = QUEUE, *, bearer: str | None = None, **metadata: str) -> bool:
        """Ask `IsActive`."""
        answer = await self.stub.IsActive(self.ref(queue, **metadata), metadata=_header(bearer))
        return bool(answer.result)

    async def metric(self, queue: str = QUEUE, name: str = METRIC, **metadata: str) -> tuple[int, float]:
        """Ask `GetMetrics`, and return the one value both ways."""
        asked = self.messages.GetMetricsRequest(scaledObjectRef=self.ref(queue, **metadata), metricName=name)
        (value,) = (await self.stub.GetMetrics(asked)).metricValues
        assert value.metricName == name
        return value.metricValue, value.metricValueFloat

    def stream(self, queue: str = QUEUE, *, bearer: str | None = None, **metadata: str) -> Any:
        """Open `StreamIsActive`."""
        return self.stub.StreamIsActive(self.ref(queue, **metadata), metadata=_header(bearer))

    async def calls(
        self, ref: Any, *, bearer: str | None = None, metric: str = METRIC, stream: bool = True
    ) -> dict[str, str]:
        """Ask everything there is, and return the status of each by its name, of a ``stream`` that of a first read."""
        header = _header(bearer)
        found = {}
        request = self.messages.GetMetricsRequest(scaledObjectRef=ref, metricName=metric)
        for name, given in (("IsActive", ref), ("GetMetricSpec", ref), ("GetMetrics", request)):
            found[name] = await status(getattr(self.stub, name)(given, metadata=header))
        if stream:
            opened = self.stub.StreamIsActive(ref, metadata=header)
            found["StreamIsActive"] = await status(opened.read())
            opened.cancel()
        return found


def _header(bearer: str | None) -> tuple[tuple[str, str], ...]:
    return () if bearer is None else (("authorization", bearer),)


async def status(call: Any) -> str:
    """Return the status that a call ends with."""
    try:
        await call
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


@contextlib.asynccontextmanager
async def scaling(bridge: Bridge | None = None, **settings: Any) -> AsyncIterator[tuple[Bridge, KedaServer]]:
    """Serve KEDA at a free port of a bridge."""
    async with contextlib.AsyncExitStack() as stack:
        if bridge is None:
            bridge = await stack.enter_async_context(Bridge())
        server = KedaServer(bridge, "127.0.0.1", 0, listen=listen, **settings)
        await server.start()
        try:
            yield bridge, server
        finally:
            await server.stop()


class Deaf:
    """A client by hand that opens streams and lets nothing be sent on them: their windows have no bytes (RFC 9113)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._next = 1

    @classmethod
    async def to(cls, port: int, sender: str = "127.0.0.1") -> Self:
        """Connect from this address."""
        self = cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(sender, 0)))
        no_window = struct.pack(">HI", 4, 0)
        self._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, no_window))
        return self

    def open(self, message: bytes) -> None:
        """Open one more stream."""
        head = {
            ":method": "POST", ":scheme": "http", ":path": "/externalscaler.ExternalScaler/StreamIsActive",
            ":authority": "here", "content-type": "application/grpc", "te": "trailers",
        }  # fmt: skip
        # Literals without indexing (RFC 7541 6.2.2), all shorter than 127 bytes.
        block = b"".join(b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in head.items())
        body = b"\0" + struct.pack(">I", len(message)) + message
        self._writer.write(_frame(1, 4, self._next, block) + _frame(0, 1, self._next, body))
        self._next += 2

    def close(self) -> None:
        """Go."""
        self._writer.close()

    async def ended(self) -> None:
        """Answer pings and settings, as whoever is alive does, until the server ends the connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readexactly(9)
                body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                if kind in (4, 6) and not flags & 1:
                    self._writer.write(_frame(kind, 1, 0, body if kind == 6 else b""))
        self.close()


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
