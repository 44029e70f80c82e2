"""Serve KEDA's gRPC calls with `KedaStreams` and `KedaCounts`; only this module needs grpcio."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.certificates import Certificate
from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.issuer import Mistimed
from queuebell.bridge.access.keys import PREFIX, Identity
from queuebell.bridge.access.quota_guard import PastLimit
from queuebell.bridge.contract.address import sender_of
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.keda.counts import KedaCounts
from queuebell.bridge.keda.demand import count_key, demand, known_state
from queuebell.bridge.keda.gateway import INNER_HOST, PER_SENDER_MAX, Gateway, Listen
from queuebell.bridge.keda.scaled_object import KEY, Target, asked
from queuebell.bridge.keda.streams import KedaStreams, Stream
from queuebell.bridge.observe.facts import AccessRefused, Fact, KedaDropped
from queuebell.bridge.queues.base import QueueStore
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.service.state.answers import ListenerState, Subscribed

# Keep grpcio from logging errors that clients cause; set the variable to debug.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


log = logging.getLogger("queuebell.keda")

STREAMS_MAX: Final = 10_000
"""Without authentication one address may have half of them."""
HANDSHAKE_S: Final = 10.0
IDLE_S: Final = 300.0
"""Idle time after which a connection ends; without any call it ends sooner (`gateway.SILENT_S`)."""
CALLS_MAX: Final = 1000
"""Concurrent calls in addition to the streams."""
WRITE_S: Final = 10.0
"""Time after which a stream that is not read ends."""
STREAM_S: Final = 1800.0
"""Lifetime of a stream; KEDA opens another within seconds, perhaps at another bridge."""
AGE_S: Final = 3600.0
"""Age after which a connection accepts no new calls; it ends with its streams, within `GRACE_S`."""
GRACE_S: Final = 2 * STREAM_S
ENDS_S: Final = 2.0
"""Time for which stopping waits for calls."""
_BYTES_MAX: Final = 16 * 1024
"""Size limit of a call: a key of `scaled_object.VALUE_MAX` characters and the rest. Each open call keeps its bytes."""
_LABEL_MAX: Final = 200

_CODES: Final = {
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "forbidden": grpc.StatusCode.PERMISSION_DENIED,
    "limit": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "uncounted": grpc.StatusCode.UNAVAILABLE,
    "unknown": grpc.StatusCode.FAILED_PRECONDITION,
}
_SAFE: Final = "nothing is lost, and pods stay as they are"


class KedaServer:
    """Serves KEDA's external scaler on one port; the caller starts and stops the bridge and ``access``.

    ``listen`` opens the port, as `bridge.http.server.sockets.listen` does, with TLS if ``tls`` is given. ``stores`` are
    those that ScaledObjects may name; the server closes them. A stream that is not read keeps one answer, and ends
    after ``write_s``. ``age_s`` and ``grace_s`` apply to connections.
    """

    name: Final = "keda"

    def __init__(
        self,
        bridge: Bridge,
        host: str,
        port: int,
        *,
        listen: Listen,
        tls: Callable[[], ssl.SSLContext] | None = None,
        stores: Mapping[str, QueueStore] = {},
        access: AccessWatch | None = None,
        write_s: float = WRITE_S,
        age_s: float = AGE_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._bridge = bridge
        self._host, self._port = host, port
        self._stores = stores
        self._authorizer = KedaAuthorizer(access, bridge.emit)
        self._listen, self._tls = listen, tls
        self._gateway = Gateway()
        self.inner_port = 0
        """grpcio's own port on this machine, once started."""
        self._write_s, self._age_s, self._grace_s = write_s, age_s, grace_s
        self._server: aio.Server | None = None
        self._open = 0
        self._by_sender: Counter[str] = Counter()
        self._calls: set[asyncio.Task[Any]] = set()
        counted: dict[str | None, QueueStore] = {None: bridge.store}
        counted.update(stores)
        self._counts = KedaCounts(counted, bridge.now, lambda queue: self._watching.queues_changed((queue,)))
        self._watching = KedaStreams(bridge, self._counts)
        bridge.metrics.watch("queuebell_keda_streams", "Open streams to KEDA", lambda: float(self._open))
        bridge.metrics.watch(
            "queuebell_keda_counts",
            "Counts of queues in external stores for KEDA, since the start",
            lambda: float(self._counts.made),
        )

    @property
    def address(self) -> str:
        """The configured address."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        return self._port

    @property
    def url(self) -> str:
        """A ScaledObject's ``scalerAddress``, seen from this machine."""
        return self.address

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._gateway.connections

    def rows(self) -> list[ListenerState]:
        """Return the streams as plain subscribers."""
        return [
            ListenerState(listener=stream.label, channel="keda", queues=[Subscribed(queue=stream.target.queue)])
            for stream in self._watching.streams()
        ]

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start listening.

        Raises `OSError` if address or port are not available, `ConfigurationError` if a store's client is missing.
        """
        for store in self._stores.values():
            check = getattr(store, "check_client", None)
            if check is not None:
                check()
        server = aio.server(
            maximum_concurrent_rpcs=STREAMS_MAX + CALLS_MAX,
            options=(
                ("grpc.so_reuseport", 0),  # two bridges would silently share one port
                ("grpc.max_receive_message_length", _BYTES_MAX),
                # As many per connection as in total: further calls get an error instead of waiting.
                ("grpc.max_concurrent_streams", STREAMS_MAX + CALLS_MAX),
                ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
                ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
                ("grpc.max_connection_age_ms", int(self._age_s * 1000)),
                ("grpc.max_connection_age_grace_ms", int(self._grace_s * 1000)),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
            ),
        )
        server.add_generic_rpc_handlers((self._handlers(),))
        # Behind the gateway, which identifies clients; calls that bypass it are rejected.
        self.inner_port = server.add_insecure_port(f"{INNER_HOST}:0")
        await server.start()
        try:
            self._port = await self._gateway.start(
                functools.partial(
                    self._listen,
                    host=self._host,
                    port=self._port,
                    tls=self._tls,
                    handshakes=PER_SENDER_MAX,
                    handshakes_per_address=PER_SENDER_MAX // 4,
                ),
                self.inner_port,
            )
        except BaseException:
            await server.stop(None)
            raise
        self._server = server

    async def stop(self) -> None:
        """End all streams in order, and all calls within a few seconds; may be called twice."""
        self._watching.close()
        self._gateway.close()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(ENDS_S)
            # The calls have ended, but their tasks need a moment.
            if self._calls:
                await asyncio.wait(self._calls, timeout=ENDS_S)
        await self._gateway.stop()
        await self._counts.stop()
        for store in self._stores.values():
            await store.close()

    def _handlers(self) -> Any:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        ref = ScaledObjectRef.FromString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "IsActive": unary(self._guarded(self._is_active), ref, _bytes),
                "StreamIsActive": stream(self._guarded(self._stream_is_active), ref, _bytes),
                "GetMetricSpec": unary(self._guarded(self._metric_spec), ref, _bytes),
                "GetMetrics": unary(self._guarded(self._metrics), GetMetricsRequest.FromString, _bytes),
            },
        )

    def _guarded(self, call: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        """Wrap a call so that errors become gRPC status codes; unexpected ones get no detail."""

        async def guarded(request: Any, context: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            try:
                return await call(request, context)
            except BadInput as error:
                code, why = grpc.StatusCode.INVALID_ARGUMENT, str(error)
            except Refused as refused:
                code, why = _CODES[refused.code], str(refused)
            except Exception:
                log.exception("unexpected error in a call from KEDA")
                code, why = grpc.StatusCode.INTERNAL, "internal error; the bridge's log has the cause"
            return await context.abort(code, why)

        return guarded

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _is_active(self, ref: Any, context: Any) -> Any:
        target, _ = await self._admitted(ref, context)
        return IsActiveResponse(result=await self._work(target) > 0)

    async def _metric_spec(self, ref: Any, context: Any) -> Any:
        # No store is called: an autoscaler created during a failure would never get a metric.
        target, _ = await self._admitted(ref, context)
        size = target.per_process
        spec = {"metricName": target.metric, "targetSize": size, "targetSizeFloat": float(size)}
        return GetMetricSpecResponse(metricSpecs=[spec])

    async def _metrics(self, request: Any, context: Any) -> Any:
        target, _ = await self._admitted(request.scaledObjectRef, context)
        if request.metricName != target.metric:
            raise BadInput("bad_parameter", f"the only metric of this trigger is {target.metric}")
        found = await self._work(target)
        # KEDA uses the float if it is above 0, and otherwise the integer, so set both.
        value = {"metricName": target.metric, "metricValue": found, "metricValueFloat": float(found)}
        return GetMetricsResponse(metricValues=[value])

    async def _work(self, target: Target) -> int:
        key = count_key(self._bridge, target)
        count = None if key is None else await self._counts.fresh(key)
        found = demand(known_state(self._bridge, target, count), target.per_process, target.start_s)
        if found is not None:
            return found
        if key is not None:
            raise Refused("uncounted", f"cannot count {target.queue}: its store does not respond; {_SAFE}")
        raise Refused(
            "unknown",
            f"workers of {target.queue} may be connected to other bridges of this cluster, which has no embedded"
            f" queues, so whether they are busy is unknown: {_SAFE}. Give all bridges a [[keda_store]], and name it in"
            " store",
        )

    async def _admitted(self, ref: Any, context: Any) -> tuple[Target, Identity | None]:
        """Authorize a call; return its target and identity. Raises `BadInput` or `Refused`."""
        address, certificate = self._behind(context)
        authorization = (str(value) for name, value in context.invocation_metadata() or () if name == "authorization")
        caller = Caller(address, tuple(authorization), certificate)
        metadata = dict(ref.scalerMetadata)
        key = metadata.get(KEY)
        try:
            target = asked(metadata, self._stores)
        except BadInput:
            # Errors may name stores, so they go only to clients with some permission to look.
            await self._authorizer.admit(caller, key, "")
            raise
        identity = await self._authorizer.admit(caller, key, target.queue)
        if identity is not None:
            self._gateway.trust(_port_of(context.peer()))
        return target, identity

    def _behind(self, context: Any) -> tuple[str, Certificate | None]:
        """Return the client's address and certificate; raises `Refused` for a call that bypassed the gateway."""
        found = self._gateway.found(_port_of(context.peer()))
        if found is None:
            raise Refused("unauthenticated", "this call bypassed the bridge's port for KEDA")
        return found

    # -- streams -----------------------------------------------------------------------------------------------------

    async def _stream_is_active(self, ref: Any, context: Any) -> None:
        target, identity = await self._admitted(ref, context)
        disconnect = self._counted_in(identity, target, context)

        def release(_: Any) -> None:
            self._open -= 1
            disconnect()

        # Count the stream until its client has read its end, not only until it gets no more values.
        context.add_done_callback(release)
        stream = self._watching.open(target, f"{ref.namespace}/{ref.name}"[:_LABEL_MAX])
        permit = None
        if self._authorizer.access is not None and identity is not None:
            permit = self._authorizer.access.permit(identity, Verb.LOOK, stream.end)
            permit.queues = frozenset({target.queue})
        try:
            await self._send(stream, context)
        finally:
            if permit is not None:
                permit.close()
            stream.end()
        if stream.ended:
            raise Refused(stream.ended, "the sender no longer has this permission")

    def _counted_in(self, identity: Identity | None, target: Target, context: Any) -> Callable[[], None]:
        """Count a stream; return a function that releases its principal's quota. Raises `Refused` at the limit."""
        disconnect: Callable[[], None] = _nothing
        try:
            if self._open >= STREAMS_MAX:
                raise Refused("limit", f"at most {STREAMS_MAX} concurrent streams")
            if self._authorizer.access is not None and identity is not None:
                try:
                    disconnect = self._authorizer.access.connect(identity.principal)
                except PastLimit as past:
                    raise Refused("limit", str(past)) from None
            elif self._authorizer.access is None:
                disconnect = self._counted_by_sender(sender_of(self._behind(context)[0]))
        except Refused as refused:
            self._bridge.emit(KedaDropped("limit"))
            self._authorizer.refuse(refused, identity, target.queue, self._behind(context)[0])
            raise
        self._open += 1
        return disconnect

    def _counted_by_sender(self, sender: str) -> Callable[[], None]:
        most = STREAMS_MAX // 2
        if self._by_sender[sender] >= most:
            raise Refused("limit", f"at most {most} concurrent streams per address without authentication")
        self._by_sender[sender] += 1

        def undo() -> None:
            self._by_sender[sender] -= 1
            if not self._by_sender[sender]:
                del self._by_sender[sender]

        return undo

    async def _send(self, stream: Stream, context: Any) -> None:
        """Send a stream's values until it ends. An orderly end makes KEDA reconnect sooner."""
        loop = asyncio.get_running_loop()
        ends = loop.call_later(STREAM_S, stream.end)
        try:
            while (active := await stream.next()) is not None:
                # A pending write can be neither cancelled nor followed by the stream's end, so limit its time.
                late = loop.call_later(self._write_s, self._drop, stream)
                try:
                    await context.write(IsActiveResponse(result=active))
                except aio.InternalError:
                    # The client disconnected, and grpcio is about to report it.
                    raise asyncio.CancelledError from None
                finally:
                    late.cancel()
        finally:
            ends.cancel()

    def _drop(self, stream: Stream) -> None:
        stream.end()
        self._bridge.emit(KedaDropped("slow"))


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _port_of(peer: str) -> int:
    """Return the port in ``ipv4:127.0.0.1:4711``."""
    port = peer.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _nothing() -> None:
    """No-op."""


_NOT_GIVEN: Final = (
    "this bridge requires a key: name the variable of the worker's container that holds it in apiKeyFromEnv"
    " (apiKeyFromEnv: QUEUEBELL_API_KEY), or have KEDA present a certificate (tlsClientCert of its"
    " TriggerAuthentication)"
)
_NOT_KNOWN: Final = "the key is unknown, was revoked, or has expired"
_STRANGE: Final = "no principal matches this certificate, and no key was given"
HELD_MAX: Final = 500
"""Concurrent delayed rejections; each occupies a call."""
_PAST_RATE: Final = "slow down: this principal exceeds its request rate"


class Refused(Exception):
    """A rejected call; ``code`` is ``unauthenticated``, ``forbidden``, ``limit``, ``uncounted`` or ``unknown``."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class Caller(msgspec.Struct, frozen=True):
    """The client of a call: its address and credentials."""

    address: str
    authorization: tuple[str, ...] = ()
    certificate: Certificate | None = None


class KedaAuthorizer:
    """Admits clients with permission to look; without an access list it admits all."""

    def __init__(self, access: AccessWatch | None, emit: Callable[[Fact], None]) -> None:
        self.access: Final = access
        self._emit = emit
        self._held = 0

    async def admit(self, caller: Caller, key: str | None, queue: str) -> Identity | None:
        """Return the identity of a client that asks for a queue, or None without authentication.

        ``key`` is the credential within the message. Raises `Refused`, after a delay for repeated rejections.
        """
        if self.access is None:
            return None
        identity, why = await self._identify(self.access, caller, key)
        refused = self._judge(self.access, identity, queue, why)
        if refused is None:
            return identity
        self.refuse(refused, identity, queue, caller.address)
        sender = "/" + sender_of(caller.address) if identity is None else identity.principal.name
        held_s = self.access.refusals.hold_s(sender, self.access.clock())
        if held_s and self._held < HELD_MAX:
            self._held += 1
            try:
                await asyncio.sleep(held_s)
            finally:
                self._held -= 1
        raise refused

    def refuse(self, refused: Refused, identity: Identity | None, queue: str, address: str) -> None:
        """Log and count a rejection."""
        name = "" if identity is None else identity.principal.name
        self._emit(AccessRefused(refused.code, name, Verb.LOOK.value, queue, address))

    @staticmethod
    async def _identify(access: AccessWatch, caller: Caller, key: str | None) -> tuple[Identity | None, str]:
        """Return the client's identity, or None and the reason; a key or token takes precedence over a certificate."""
        if not caller.authorization and key is None:
            if caller.certificate is None:
                return None, _NOT_GIVEN
            return access.identify_certificate(caller.certificate), _STRANGE
        if caller.authorization:
            scheme, _, secret = caller.authorization[0].partition(" ")
            secret = secret.strip(" ") if scheme.lower() == "bearer" and len(caller.authorization) == 1 else ""
        else:
            secret = key or ""
        if not secret or secret.startswith(PREFIX):
            return access.identify(secret), _NOT_KNOWN
        try:
            return await access.identify_token(secret), _NOT_KNOWN
        except Mistimed as error:
            return None, str(error)

    @staticmethod
    def _judge(access: AccessWatch, identity: Identity | None, queue: str, why: str) -> Refused | None:
        if identity is None:
            return Refused("unauthenticated", why)
        wait = access.allowance(identity.principal).request(access.clock())
        if not identity.principal.may(Verb.LOOK, queue):
            return Refused("forbidden", f"'{Verb.LOOK.value}' is not granted on {queue or 'any queue'}")
        return Refused("limit", f"{_PAST_RATE}; retry in {wait} s") if wait else None


PACKAGE: Final = "externalscaler"
SERVICE: Final = f"{PACKAGE}.ExternalScaler"

_FIELDS: Final = {
    "ScaledObjectRef": "1 name string, 2 namespace string, 3 scalerMetadata map",
    "IsActiveResponse": "1 result bool",
    "MetricSpec": "1 metricName string, 2 targetSize int64, 3 targetSizeFloat double",
    "GetMetricSpecResponse": "1 metricSpecs MetricSpec*",
    "GetMetricsRequest": "1 scaledObjectRef ScaledObjectRef, 2 metricName string",
    "MetricValue": "1 metricName string, 2 metricValue int64, 3 metricValueFloat double",
    "GetMetricsResponse": "1 metricValues MetricValue*",
}
_ENTRY: Final = "ScalerMetadataEntry"
_TYPES: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
}


def _add(message: DescriptorProto, text: str) -> None:
    number, name, kind = text.split()
    field = message.field.add(name=name, number=int(number), label=FieldDescriptorProto.LABEL_OPTIONAL)
    if kind == "map":
        # A map is a repeated message of keys and values.
        entry = message.nested_type.add(name=_ENTRY)
        entry.options.map_entry = True
        _add(entry, "1 key string")
        _add(entry, "2 value string")
        kind = f"{message.name}.{_ENTRY}*"
    if kind.endswith("*"):
        field.label = FieldDescriptorProto.LABEL_REPEATED
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind.rstrip('*')}"


def classes() -> dict[str, Any]:
    """Create the classes of all messages, by name."""
    file = FileDescriptorProto(name="externalscaler.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            _add(message, field)
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _FIELDS}


_made: Final = classes()
ScaledObjectRef: Final = _made["ScaledObjectRef"]
IsActiveResponse: Final = _made["IsActiveResponse"]
GetMetricSpecResponse: Final = _made["GetMetricSpecResponse"]
GetMetricsRequest: Final = _made["GetMetricsRequest"]
GetMetricsResponse: Final = _made["GetMetricsResponse"]
