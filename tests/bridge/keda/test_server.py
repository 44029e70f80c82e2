"""KEDA's external scaler on the wire, asked by what KEDA's own compiler makes of its protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import pathlib
import re
import time
from collections.abc import AsyncIterator
from typing import NoReturn

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from google.protobuf.descriptor_pb2 import DescriptorProto
from grpc import aio

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.keys import with_terms
from queuebell.bridge.access.limits import Refusals
from queuebell.bridge.http.server.sockets import listen
from queuebell.bridge.http.server.tls import Certificates
from queuebell.bridge.keda import gateway as gate
from queuebell.bridge.keda import server as door
from queuebell.bridge.keda import server as keda_server
from queuebell.bridge.keda import server as messages
from queuebell.bridge.keda.server import KedaServer
from queuebell.bridge.observe.facts import AccessRefused, Fact
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.service.bridge import Bridge
from tests.listeners.rig import Store
from tests.support.access import written
from tests.support.certificates import Authority
from tests.support.keda import METRIC, QUEUE, Deaf, Keda, compiled, scaling, status
from tests.support.processes import PATIENCE_S
from tests.support.web import Client, request

CALLS = ("IsActive", "GetMetricSpec", "GetMetrics", "StreamIsActive")
GRANTED, OTHER = "billing/orders", "billing/other"


def all_are(code: str) -> dict[str, str]:
    return dict.fromkeys(CALLS, code)


def scraped(bridge: Bridge, name: str) -> float:
    """Return what ``/metrics`` says of it, labels that are not named added up; fails where it knows no such metric."""
    text = bridge.metrics.render().decode()
    assert f"# TYPE {name.partition('{')[0]} " in text, f"no metric is called {name}"
    found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


async def read(stream: object, wanted: bool) -> None:
    """Read until this is said."""
    async with asyncio.timeout(PATIENCE_S):
        while (await stream.read()).result is not wanted:  # type: ignore[attr-defined]
            pass


def test_the_messages_are_those_of_kedas_own_compiler() -> None:
    """Each field has its number, its type and its place, and so a later KEDA reads them as this one does."""
    theirs, _ = compiled()
    for name, made in messages.classes().items():
        ours, wanted = DescriptorProto(), DescriptorProto()
        made.DESCRIPTOR.CopyToProto(ours)
        getattr(theirs, name).DESCRIPTOR.CopyToProto(wanted)
        assert ours == wanted
        assert made.DESCRIPTOR.file.name == theirs.DESCRIPTOR.name
        assert made.DESCRIPTOR.full_name == getattr(theirs, name).DESCRIPTOR.full_name


async def test_a_stop_ends_a_call_that_waits_for_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given some seconds; then nothing of it is left, and the store is closed."""
    monkeypatch.setattr(keda_server, "ENDS_S", 0.05)
    asked, closed = asyncio.Event(), []

    class Silent(Store):
        async def counts(self, queue: str) -> NoReturn:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def close(self) -> None:
            closed.append(self)

    store = Silent()
    async with scaling(stores={"east": store}) as (_, server), Keda.to(server) as keda:
        before = asyncio.all_tasks()
        asking = asyncio.create_task(status(keda.stub.IsActive(keda.ref(store="east"))), name="ask")
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
            await server.stop()
            assert closed == [store]
            assert not {
                task.get_name() for task in asyncio.all_tasks() - before - {asking} if "KEDA" in task.get_name()
            }
            assert await asking in {"UNAVAILABLE", "CANCELLED"}


async def test_another_metric_is_refused_and_another_queue_is_empty() -> None:
    """S50: Pods may be described before the first put."""
    async with scaling() as (_, server), Keda.to(server) as keda:
        with pytest.raises(grpc.RpcError) as caught:
            await keda.metric(name="s0-" + METRIC)
        assert (caught.value.code(), METRIC in caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert await keda.active("billing/never-heard-of") is False
        assert await keda.metric("a/b", "queuebell-a-b") == (0, 0.0)


async def test_a_store_elsewhere_that_fails_is_unavailable_and_leaves_the_spec() -> None:
    """KEDA leaves pods as they are on an error; an autoscaler that is made meanwhile has its metric."""

    class Broken(Store):
        async def counts(self, queue: str) -> None:
            raise OSError("nobody answers at 10.0.0.1")

    async with scaling(stores={"east": Broken()}) as (_, server), Keda.to(server) as keda:
        assert await keda.calls(keda.ref(store="east"), stream=False) == {
            "IsActive": "UNAVAILABLE", "GetMetricSpec": "OK", "GetMetrics": "UNAVAILABLE",
        }  # fmt: skip
        with pytest.raises(grpc.RpcError, match=f"cannot count {QUEUE}: .*nothing is lost"):
            await keda.active(store="east")


@pytest.mark.parametrize(
    "asked",
    [
        request("POST", "/externalscaler.ExternalScaler/IsActive", b"", Origin="http://evil.example"),
        request("POST", "/externalscaler.ExternalScaler/IsActive", b"", media="application/grpc"),
        request("OPTIONS", "/externalscaler.ExternalScaler/IsActive", Origin="http://evil.example"),
    ],
)
async def test_a_web_page_is_told_nothing(asked: bytes) -> None:
    """S52: what a page can have a browser send is no gRPC, whatever its origin: the connection ends."""
    async with scaling() as (_, server):
        client = Client(*await asyncio.open_connection("127.0.0.1", server.port))
        await client.send(asked)
        told = await client.rest()
        await client.close()
        assert not told.startswith(b"HTTP/1") or told.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
        assert b"billing" not in told and b"grpc-status: 0" not in told


async def test_what_is_unforeseen_tells_nothing_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours is in the log, and no stranger reads its words."""
    monkeypatch.setattr(keda_server, "demand", lambda *_: 1 / 0)
    async with scaling() as (_, server), Keda.to(server) as keda:
        with pytest.raises(grpc.RpcError) as caught:
            await keda.active()
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.INTERNAL,
            "internal error; the bridge's log has the cause",
        )


# -- who may -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carried", ["environment", "header"])
async def test_each_verb_with_each_call(carried: str, tmp_path: pathlib.Path) -> None:
    """The matrix: who may look at the queue is told of it, all others are refused, by every call and every carrier."""
    file = tmp_path / "access.json"
    secrets = written(file, {v.value: {v.value: ["*" if v is Verb.OPERATE else GRANTED]} for v in Verb})

    async def asked(keda: Keda, secret: str, queue: str) -> dict[str, str]:
        metric = "queuebell-" + queue.replace("/", "-")
        if carried == "header":
            return await keda.calls(keda.ref(queue), bearer=f"Bearer {secret}", metric=metric)
        return await keda.calls(keda.ref(queue, apiKeyFromEnv=secret), metric=metric)

    async with AccessWatch(file) as watch, scaling(access=watch) as (bridge, server), Keda.to(server) as keda:
        for verb, queue in itertools.product(Verb, (GRANTED, OTHER)):
            wanted = "OK" if verb is Verb.LOOK and queue == GRANTED else "PERMISSION_DENIED"
            assert await asked(keda, secrets[verb.value], queue) == all_are(wanted), (verb, queue)
        assert scraped(bridge, "queuebell_refusals_total") == 4 * 11
        with pytest.raises(grpc.RpcError, match=f"'look' is not granted on {OTHER}"):
            await keda.active(OTHER, bearer=f"bearer  {secrets['look']} ")
        # Refused ever slower from here on: one call each.
        for secret in ("", "qb_" + "f" * 64, "eyJ.e30.x"):
            assert (await status(keda.stub.IsActive(keda.ref(GRANTED, apiKeyFromEnv=secret)))) == "UNAUTHENTICATED"
        assert await status(keda.stub.IsActive(keda.ref(GRANTED))) == "UNAUTHENTICATED"
        shown = ("authorization", f"Bearer {secrets['look']}")
        for header in ((("authorization", f"Basic {secrets['look']}"),), (shown, shown)):
            assert await status(keda.stub.IsActive(keda.ref(GRANTED), metadata=header)) == "UNAUTHENTICATED"


async def test_a_stream_ends_once_its_queue_is_no_longer_granted(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "access.json"
    secrets = written(file, {"keda": {"look": [GRANTED, OTHER]}})
    refused: list[Fact] = []
    async with AccessWatch(file) as watch, scaling(access=watch) as (bridge, server), Keda.to(server) as keda:
        bridge.observe(lambda fact: refused.append(fact) if isinstance(fact, AccessRefused) else None)
        streams = [
            keda.stub.StreamIsActive(keda.ref(queue, apiKeyFromEnv=secrets["keda"])) for queue in (GRANTED, OTHER)
        ]
        for stream in streams:
            await read(stream, False)
        access_file.change(file, lambda found: with_terms(found, "keda", {"look": [OTHER]}, limits={}))
        watch.check()
        assert await status(streams[0].read()) == "PERMISSION_DENIED"
        assert not streams[1].done()
        assert await status(keda.stub.IsActive(keda.ref(GRANTED, apiKeyFromEnv=secrets["keda"]))) == "PERMISSION_DENIED"
        (last,) = refused
        assert last == AccessRefused("forbidden", "keda", "look", GRANTED, last.address)
        streams[1].cancel()


async def test_nobody_learns_what_there_is_who_may_not_look(tmp_path: pathlib.Path) -> None:
    """What is wrong with the metadata, the names of stores in it, is told to whoever may look at any queue."""
    secrets = written(tmp_path / "a.json", {"keda": {"look": [GRANTED]}, "maker": {"put": ["*"]}})
    stores = {"east": Store()}
    async with AccessWatch(tmp_path / "a.json") as watch, scaling(access=watch, stores=stores) as (_, server):
        async with Keda.to(server) as keda:
            for secret, code in (
                (secrets["keda"], "INVALID_ARGUMENT"),
                (secrets["maker"], "PERMISSION_DENIED"),
                ("x", "UNAUTHENTICATED"),
            ):
                ref = keda.ref(store="west", apiKeyFromEnv=secret)
                with pytest.raises(grpc.RpcError) as caught:
                    await keda.stub.IsActive(ref)
                assert caught.value.code().name == code
                assert ("east" in caught.value.details()) is (code == "INVALID_ARGUMENT")


async def test_strangers_take_no_more_places_than_some(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals are held to slow down whoever asks; each takes a call's place, so that past a number they go at once."""
    monkeypatch.setattr(door, "HELD_MAX", 3)
    file = tmp_path / "access.json"
    written(file, {"keda": {"look": ["*"]}})
    async with AccessWatch(file) as watch, scaling(access=watch) as (_, server), Keda.to(server) as keda:
        watch.refusals = Refusals(per_second=0.001, at_once=0, held_s_max=1000.0)
        held = [keda.stub.IsActive(keda.ref(apiKeyFromEnv="qb_x")) for _ in range(4)]
        asking = [asyncio.create_task(status(each), name="ask") for each in held]
        await asyncio.wait(asking, return_when="FIRST_COMPLETED", timeout=PATIENCE_S)
        assert sum(each.done() for each in held) == 1
        for each in held:
            each.cancel()
        await asyncio.wait(asking)


# -- the ends ----------------------------------------------------------------------------------------------------------


async def none_is_open(bridge: Bridge) -> None:
    """Wait until no stream takes a place any more."""
    async with asyncio.timeout(PATIENCE_S):
        while scraped(bridge, "queuebell_keda_streams"):
            await asyncio.sleep(0.01)


async def test_without_keys_one_address_has_half_of_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger who has his leaves the others to KEDA, and has room again where one of his has ended."""
    monkeypatch.setattr(keda_server, "STREAMS_MAX", 4)
    message = compiled()[0].ScaledObjectRef(scalerMetadata={"queue": QUEUE}).SerializeToString()
    async with scaling() as (bridge, server):
        for _ in range(2):
            deaf = await Deaf.to(server.port, "127.0.0.2")
            ended = asyncio.create_task(deaf.ended(), name="a stranger")
            for _ in range(3):
                deaf.open(message)
            async with asyncio.timeout(PATIENCE_S):
                while not scraped(bridge, 'queuebell_keda_dropped_total{reason="limit"}'):
                    await asyncio.sleep(0.005)
                while scraped(bridge, "queuebell_keda_streams") < 2:
                    await asyncio.sleep(0.005)
            async with Keda.to(server) as keda:
                stream = keda.stream()
                await read(stream, False)
                stream.cancel()
            deaf.close()
            await ended
            await none_is_open(bridge)


async def test_a_stranger_does_not_keep_keda_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are bounded per address, and one that has ended makes room for another."""
    monkeypatch.setattr(gate, "PER_SENDER_MAX", 2)
    async with scaling() as (_, server):

        async def from_another_address() -> Client:
            return Client(*await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0)))

        opened = [await from_another_address() for _ in range(3)]
        assert await opened[2].rest() == b""
        async with Keda.to(server) as keda:
            assert await keda.active() is False
        for client in opened:
            await client.close()
        async with asyncio.timeout(PATIENCE_S):
            while server.connections:
                await asyncio.sleep(0.01)
        again = [await from_another_address() for _ in range(3)]
        assert await again[2].rest() == b""
        assert server.connections == 2
        for client in again:
            await client.close()


async def test_a_call_that_passes_the_gate_by_is_refused() -> None:
    """The port beneath asks nobody for a certificate, so that it serves only whom the gate has let in."""
    async with scaling() as (_, server):
        async with aio.insecure_channel(f"127.0.0.1:{server.inner_port}") as channel:
            keda = Keda(channel)
            assert await keda.calls(keda.ref()) == all_are("UNAUTHENTICATED")


async def test_a_stream_ends_with_its_certificate(tmp_path: pathlib.Path) -> None:
    async with named(tmp_path) as (authority, watch, server, clock):
        cert, key = authority.certificate("keda", x509.DNSName("keda.internal"))
        credentials = grpc.ssl_channel_credentials(authority.file.read_bytes(), key.read_bytes(), cert.read_bytes())
        async with aio.secure_channel(f"localhost:{server.port}", credentials) as channel:
            stream = Keda(channel).stream()
            await read(stream, False)
            clock.append(49 * 3600.0)
            watch.check()
            assert await status(stream.read()) == "UNAUTHENTICATED"


@contextlib.asynccontextmanager
async def named(folder: pathlib.Path) -> AsyncIterator[tuple[Authority, AccessWatch, KedaServer, list[float]]]:
    """Serve KEDA over TLS, where three names of certificates are the principal ``keda``; the last one sets its time."""
    authority, ahead = Authority(folder), [0.0]
    served = authority.certificate("bridge", x509.DNSName("localhost"), usage=ExtendedKeyUsageOID.SERVER_AUTH)
    file = folder / "access.json"
    written(file, {"keda": {"look": ["*"]}})
    names = ["DNS:keda.internal", "spiffe://x/keda", "email:keda@x"]
    access_file.change(file, lambda listed: with_terms(listed, "keda", {}, limits={}, certificates=names))
    certificates = Certificates(*map(str, served), "keda", str(authority.file), required=True, alpn=["h2"])
    async with (
        AccessWatch(file, wall=lambda: time.time() + ahead[-1]) as watch,
        scaling(access=watch, tls=certificates.current) as (_, server),
    ):
        yield authority, watch, server, ahead


async def test_an_address_of_ipv6_has_its_brackets() -> None:
    async with Bridge() as bridge:
        assert KedaServer(bridge, "::1", 8475, listen=listen).url == "[::1]:8475"


async def test_a_port_in_use_is_refused() -> None:
    """Two servers never share one without a word."""
    async with scaling() as (_, server), Bridge() as another:
        with pytest.raises(OSError, match="in use"):
            await KedaServer(another, "127.0.0.1", server.port, listen=listen).start()


async def told_of_a_put(count: int) -> None:
    """Open so many streams of as many ScaledObjects and queues of one connection, and have each told of its put."""
    async with scaling() as (bridge, server), Keda.to(server) as keda:
        queues = [f"billing/q{number}" for number in range(count)]
        streams = [keda.stream(queue) for queue in queues]
        async with asyncio.timeout(PATIENCE_S):
            for stream in streams:
                await read(stream, False)
            for queue in queues:
                await bridge.store.put(queue, [NewMessage(b"x")])
            for stream in streams:
                await read(stream, True)
        assert scraped(bridge, "queuebell_keda_streams") == count
        assert scraped(bridge, "queuebell_keda_counts") == 0
        tasks = {task.get_name() for task in asyncio.all_tasks()}
        assert not [name for name in tasks if "KEDA" in name]
        for stream in streams:
            stream.cancel()


@pytest.mark.rest
async def test_a_thousand_streams() -> None:
    await told_of_a_put(1000)


async def test_who_never_reads_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """S51: one answer waits for each stream and no more, others go on, and nothing of it is in the log."""
    async with scaling(write_s=0.05) as (bridge, server):
        deaf = await Deaf.to(server.port)
        message = compiled()[0].ScaledObjectRef(scalerMetadata={"queue": QUEUE}).SerializeToString()
        for _ in range(20):
            deaf.open(message)
        ended = asyncio.create_task(deaf.ended(), name="a client that never reads")
        async with asyncio.timeout(PATIENCE_S):
            while scraped(bridge, 'queuebell_keda_dropped_total{reason="slow"}') < 20:
                await asyncio.sleep(0.01)
        assert server.rows() == []
        # Until their client goes they take places, of which there are so many.
        assert scraped(bridge, "queuebell_keda_streams") == 20
        async with Keda.to(server) as keda:
            stream = keda.stream()
            await read(stream, False)
            await bridge.store.put(QUEUE, [NewMessage(b"x")])
            await read(stream, True)
            stream.cancel()
        deaf.close()
        await ended
        await none_is_open(bridge)
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []
