"""The promise of a broker, asked of a real one. A subclass provides the fixtures `server` and `opened`."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from collections.abc import Callable
from typing import Protocol

import pytest

from queuebell.bridge.brokers.base import ANY, Broker, Incoming, Topic
from queuebell.bridge.contract.errors import BadInput, BusUnavailable, Closed
from tests.support.brokers import Flood, RealBroker
from tests.support.tcp_proxy import TcpProxy

PATIENCE_S = 200.0


class Opened(Protocol):
    """Makes brokers that are closed when the test ends."""

    async def __call__(self, port: int | None = None, *, connect: bool = True) -> Broker:
        """Return a broker at ``port`` (the server's own by default)."""
        ...


class Recorder:
    """Keeps the messages that it receives, and waits for them."""

    def __init__(self, answer: Callable[[Incoming], None] = lambda _: None) -> None:
        self.received: list[Incoming] = []
        self._answer = answer
        self._news = asyncio.Event()

    def __call__(self, incoming: Incoming) -> None:
        self.received.append(incoming)
        self._news.set()
        self._answer(incoming)

    @property
    def payloads(self) -> list[bytes]:
        return [incoming.payload for incoming in self.received]

    async def has(self, count: int) -> list[Incoming]:
        """Wait until ``count`` messages have arrived."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(self.received) < count:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"received {len(self.received)} of {count}: {self.payloads[-3:]}") from None
        return self.received


async def publish_all(broker: Broker, topic: Topic, payloads: list[bytes]) -> None:
    """Publish without overrunning the buffer."""
    for payload in payloads:
        while not broker.publish(topic, payload):
            await broker.barrier()


def loop_time() -> float:
    return asyncio.get_running_loop().time()


def peak_mib() -> float:
    """The most memory that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024) if sys.platform == "darwin" else peak / 1024


class BrokerConformance:
    """The promise of `queuebell.bridge.brokers.base`, sentence by sentence."""

    describes = True
    """Whether content type and headers are carried."""
    knows_nobody = True
    """Whether a request without a subscriber fails."""
    lossless = True
    """Whether the broker itself keeps all messages for a subscriber that is slow for a second."""

    async def test_nothing_is_lost_after_subscribe(self, opened: Opened) -> None:
        """A message that is published right after `subscribe` returned arrives, 200 times of 200 (trap 3.1)."""
        subscriber, publisher = await opened(), await opened()
        for turn in range(200):
            recorder, topic = Recorder(), ("t", f"turn-{turn}")
            await subscriber.subscribe(topic, recorder)
            assert publisher.publish(topic, b"first")
            assert (await recorder.has(1))[0].topic == topic

    async def test_order(self, opened: Opened) -> None:
        """5000 messages arrive once each, in order."""
        subscriber, publisher, recorder = await opened(), await opened(), Recorder()
        await subscriber.subscribe(("t", "order"), recorder)
        sent = [str(number).encode() for number in range(5000)]
        await publish_all(publisher, ("t", "order"), sent)
        await recorder.has(len(sent))
        await subscriber.barrier()
        assert recorder.payloads == sent
        assert subscriber.dropped == 0

    async def test_patterns(self, opened: Opened) -> None:
        broker, recorder = await opened(), Recorder()
        await broker.subscribe(("p", ANY, "x", ANY), recorder)
        for topic in [("p", "a", "x"), ("p", "a", "x", "b", "c"), ("p", "a", "y", "b"), ("q", "a", "x", "b")]:
            assert broker.publish(topic, b"no")
        assert broker.publish(("p", "a", "x", "b"), b"yes")
        await broker.barrier()
        assert [(each.topic, each.payload) for each in await recorder.has(1)] == [(("p", "a", "x", "b"), b"yes")]

    @pytest.mark.parametrize("token", ["", "a.b", "a/b", "*", "+", ">", "#", "a b", "a\r\nPUB x 0", "a\x00"])
    async def test_no_token_smuggles(self, opened: Opened, token: str) -> None:
        """A token with a separator, a wildcard, a space or a line break is refused."""
        broker = await opened()
        with pytest.raises(BadInput):
            broker.publish(("t", token), b"")
        with pytest.raises(BadInput):
            await broker.request(("t", token), b"")
        if token != ANY:
            with pytest.raises(BadInput):
                await broker.subscribe(("t", token), Recorder())
        assert await broker.probe() < 2

    async def test_shared_subscriptions_are_refused(self, opened: Opened) -> None:
        """`$share` is refused: NATS's MQTT listener grants it and delivers nothing, and triggers are never shared."""
        broker = await opened()
        with pytest.raises(BadInput):
            await broker.subscribe(("$share", "group", "t"), Recorder())

    async def test_described(self, opened: Opened) -> None:
        """Content type and headers arrive where the protocol has them, names in lower case; payloads are bytes."""
        broker, recorder = await opened(), Recorder()
        await broker.subscribe(("t", "d"), recorder)
        assert broker.publish(("t", "d"), b"\x00\xff", content_type="application/json", headers={"CE-Id": "grün"})
        assert broker.publish(("t", "d"), b"")
        first, second = await recorder.has(2)
        assert (first.payload, type(first.payload), second.payload) == (b"\x00\xff", bytes, b"")
        assert first.content_type == ("application/json" if self.describes else None)
        assert first.headers.get("ce-id") == ("grün" if self.describes else None)
        assert (second.content_type, second.reply_to, second.acknowledge, second.redelivered) == (
            None,
            None,
            None,
            False,
        )

    async def test_not_connected(self, opened: Opened) -> None:
        """Before `connect` every call fails; a connection is made once; `close` may be called twice."""
        broker = await opened(connect=False)
        assert not broker.publish(("t",), b"")
        for ask in (broker.probe, broker.barrier, lambda: broker.request(("t",), b"")):
            with pytest.raises(BusUnavailable):
                await ask()
        await broker.connect()
        with pytest.raises(Closed):
            await broker.connect()
        await broker.close()
        await broker.close()
        assert await broker.broken() == "closed"
        assert not broker.publish(("t",), b"")
        assert not broker.writable()

    async def test_nobody_there(self, opened: Opened, server: RealBroker) -> None:
        """Without a broker, or with a server that never answers, `connect` fails within 5 s."""
        async with TcpProxy(server.port) as proxy:
            proxy.refusing = True
            for broker in (await opened(proxy.port, connect=False), await opened(9, connect=False)):
                with pytest.raises(BusUnavailable):
                    await broker.connect()
                assert await broker.broken()

    async def test_barrier(self, opened: Opened, server: RealBroker, port: int) -> None:
        """What was published before the barrier is with the broker, even if the connection is cut at that moment."""
        async with TcpProxy(port) as proxy:
            subscriber, publisher, recorder = await opened(), await opened(proxy.port), Recorder()
            await subscriber.subscribe(("t", "b"), recorder)
            for number in range(1000):
                assert publisher.publish(("t", "b"), str(number).encode())
            await publisher.barrier()
            proxy.cut()
            await recorder.has(1000)
            await publisher.broken()
            with pytest.raises(BusUnavailable):
                await publisher.barrier()

    async def test_request(self, opened: Opened) -> None:
        """A request returns once it is acknowledged, and fails immediately without a subscriber, if known."""
        broker, other = await opened(), await opened()

        def answer(incoming: Incoming) -> None:
            if incoming.reply_to is not None:
                assert other.publish(incoming.reply_to, b"")

        recorder = Recorder(answer)
        await other.subscribe(("t", "r", ANY), recorder)
        await asyncio.gather(*(broker.request(("t", "r", str(number)), b"x") for number in range(50)))
        assert sorted(int(each.topic[2]) for each in await recorder.has(50)) == list(range(50))
        started = loop_time()
        if self.knows_nobody:
            with pytest.raises(BusUnavailable):
                await broker.request(("t", "nobody"), b"x")
        else:
            await broker.request(("t", "nobody"), b"x")
        assert loop_time() - started < 4, "it waited for an answer"

    async def test_request_without_answer(self, opened: Opened, port: int) -> None:
        """A request whose connection breaks fails then, not after its time-out."""
        async with TcpProxy(port) as proxy:
            broker = await opened(proxy.port)
            proxy.black_hole()
            asking = asyncio.create_task(broker.request(("t", "r"), b"x"), name="ask")
            await asyncio.sleep(0)
            proxy.cut()
            with pytest.raises(BusUnavailable):
                async with asyncio.timeout(10):
                    await asking

    async def test_probe(self, opened: Opened, port: int) -> None:
        """A probe takes a round trip; through a connection that swallows everything it fails after 2 s."""
        async with TcpProxy(port) as proxy:
            broker = await opened(proxy.port)
            assert await broker.probe() > 0
            proxy.up.latency_s = 0.05
            assert await broker.probe() >= 0.05
            proxy.black_hole()
            started = loop_time()
            with pytest.raises(BusUnavailable):
                await broker.probe()
            assert 1.9 < loop_time() - started < 20
            started = loop_time()
            await broker.close()
            assert loop_time() - started < 20

    async def test_deaf_in_one_direction(self, opened: Opened, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        async with TcpProxy(port) as proxy:
            brokers = [await opened(proxy.port), await opened(proxy.port)]
            proxy.down.swallow = True
            monkeypatch.setattr("queuebell.bridge.brokers.connection.PROBE_S", 0.1)
            found = await asyncio.gather(*(broker.probe() for broker in brokers), return_exceptions=True)
            assert [type(each) for each in found] == [BusUnavailable, BusUnavailable]
            started = loop_time()
            await asyncio.gather(*(broker.close() for broker in brokers))
            assert loop_time() - started < 20

    async def test_half_open_with_full_buffers(self, opened: Opened, port: int) -> None:
        """With full buffers `publish` and `writable` return False, and `close` still ends in 2 s."""
        async with TcpProxy(port) as proxy:
            broker = await opened(proxy.port)
            assert broker.writable()
            proxy.freeze()
            for _ in range(2000):
                if not broker.publish(("t", "full"), bytes(16384)):
                    break
                await asyncio.sleep(0)
            else:
                pytest.fail("takes 32 MB that nobody reads")
            assert not broker.writable()
            with pytest.raises(BusUnavailable):
                await broker.probe()
            started = loop_time()
            await broker.close()
            assert loop_time() - started < 20

    async def test_killed(self, opened: Opened, server: RealBroker) -> None:
        """`broken` returns within 1 s of a kill -9 of the broker, and every later call fails."""
        broker = await opened()
        waiting = asyncio.create_task(broker.broken(), name="broken")
        await server.kill()
        async with asyncio.timeout(10):
            reason = await waiting
        assert reason
        assert "\n" not in reason
        assert not broker.publish(("t",), b"")
        for ask in (broker.probe, broker.barrier, lambda: broker.request(("t",), b"")):
            with pytest.raises(BusUnavailable):
                await ask()
        with pytest.raises(BusUnavailable):
            await broker.subscribe(("t",), Recorder())

    async def test_cut_under_load(self, opened: Opened, port: int) -> None:
        """A connection reset amid publishing breaks; `publish` turns False and raises nothing."""
        async with TcpProxy(port) as proxy:
            broker, recorder = await opened(proxy.port), Recorder()
            await broker.subscribe(("t", "cut"), recorder)
            taken = 0
            while broker.publish(("t", "cut"), bytes(100)):
                taken += 1
                if taken == 1000:
                    proxy.cut()
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await broker.broken()
            assert taken >= 1000

    async def test_stopped(self, opened: Opened, server: RealBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        """A broker stopped by SIGSTOP fails the probe, and `close` ends, with tenfold room."""
        broker = await opened()
        server.pause()
        monkeypatch.setattr("queuebell.bridge.brokers.connection.PROBE_S", 0.1)
        started = loop_time()
        with pytest.raises(BusUnavailable):
            await broker.probe()
        assert loop_time() - started < 25
        started = loop_time()
        await broker.close()
        assert loop_time() - started < 20

    @pytest.mark.parametrize("keep_store", [True, False])
    async def test_restarted(self, opened: Opened, server: RealBroker, keep_store: bool) -> None:
        """After a restart on the same port, with its sessions or without, a new connection works; the old one ended."""
        old = await opened()
        await server.restart(keep_store=keep_store)
        async with asyncio.timeout(PATIENCE_S):
            await old.broken()
        broker, recorder = await opened(), Recorder()
        await broker.subscribe(("t", "again"), recorder)
        assert broker.publish(("t", "again"), b"x")
        await recorder.has(1)

    async def test_bytes_one_by_one(self, opened: Opened, port: int) -> None:
        """Frames torn into single bytes in both directions arrive whole."""
        async with TcpProxy(port) as proxy:
            proxy.up.one_byte = proxy.down.one_byte = True
            broker, recorder = await opened(proxy.port), Recorder()
            await broker.subscribe(("t", "torn"), recorder)
            sent = [bytes([number]) * number for number in range(60)]
            await publish_all(broker, ("t", "torn"), sent)
            await recorder.has(len(sent))
            assert recorder.payloads == sent

    async def test_dropped_bytes(self, opened: Opened, port: int) -> None:
        """Missing bytes end the connection or make it deaf, which a probe finds."""
        async with TcpProxy(port) as proxy:
            broker, other, recorder = await opened(proxy.port), await opened(), Recorder()
            await broker.subscribe(("t", "hole"), recorder)
            proxy.down.drop = 7
            await publish_all(other, ("t", "hole"), [b"x" * 50] * 20)
            await other.barrier()

            async def found() -> None:
                for _ in range(10):
                    await broker.probe()

            with pytest.raises(BusUnavailable):
                await found()
            assert all(payload == b"x" * 50 for payload in recorder.payloads[:-2])

    async def test_big(self, opened: Opened) -> None:
        """900 kB arrive whole; more than the broker's limit is refused, and the connection continues."""
        broker, recorder = await opened(), Recorder()
        await broker.subscribe(("t", "big"), recorder)
        assert broker.publish(("t", "big"), b"b" * 900_000)
        assert (await recorder.has(1))[0].payload == b"b" * 900_000
        if broker.kind == "nats":
            assert not broker.publish(("t", "big"), bytes(2_000_000))
            with pytest.raises(BadInput):
                await broker.request(("t", "big"), bytes(2_000_000))
        assert await broker.probe() < 2

    async def test_slow_callback(self, opened: Opened, port: int) -> None:
        """100,000 messages for a slow callback: in order, none twice, memory bounded."""
        last, gaps, heard = -1, 0, 0

        def on_message(incoming: Incoming) -> None:
            nonlocal last, gaps, heard
            number = int(incoming.payload)
            assert number > last
            gaps += number - last - 1
            last, heard = number, heard + 1
            until = time() + 5e-6
            while time() < until:
                pass

        time = asyncio.get_running_loop().time
        broker = await opened()
        await broker.subscribe(("t", "flood"), on_message)
        before = peak_mib()
        flood = Flood(broker.kind, port, ("t", "flood"), 100_000, 200)
        flood.start()
        async with asyncio.timeout(PATIENCE_S * 2):
            while flood.is_alive():
                await asyncio.sleep(0.01)
            quiet = -1
            while quiet != heard:  # the barrier is behind the flood
                quiet = heard
                with contextlib.suppress(BusUnavailable):
                    await broker.barrier()
        assert peak_mib() - before < 48
        if self.lossless:
            assert (heard, gaps, broker.dropped) == (100_000, 0, 0)
        assert heard > 1000

    async def test_callback_that_raises(self, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
        """An exception in a callback costs that message and one line, not the connection (trap 3.6)."""

        def fail(incoming: Incoming) -> None:
            if incoming.payload != b"last":
                raise RuntimeError("a fault in the callback")

        broker, recorder = await opened(), Recorder(fail)
        await broker.subscribe(("t", "f"), recorder)
        await publish_all(broker, ("t", "f"), [*[b"x"] * 100, b"last"])
        await recorder.has(101)
        assert await broker.probe() < 2
        assert len([record for record in caplog.records if record.name == "queuebell.broker"]) == 1

    async def test_two_clients(self, opened: Opened) -> None:
        """Two connections with one name work side by side, and each receives everything."""
        brokers, recorders = [await opened(), await opened()], [Recorder(), Recorder()]
        for broker, recorder in zip(brokers, recorders, strict=True):
            await broker.subscribe(("t", "two"), recorder, at_least_once=True)
        for broker in brokers:
            await publish_all(broker, ("t", "two"), [b"x"] * 10)
        for recorder in recorders:
            await recorder.has(20)

    async def test_close_brings_what_was_published(self, opened: Opened) -> None:
        """Messages that `publish` accepted before `close` arrive."""
        subscriber, publisher, recorder = await opened(), await opened(), Recorder()
        await subscriber.subscribe(("t", "c"), recorder)
        for _ in range(500):
            assert publisher.publish(("t", "c"), bytes(200))
        await publisher.close()
        await recorder.has(500)

    async def test_cancelled(self, opened: Opened, port: int) -> None:
        """A cancelled `connect`, `probe`, `request` or `subscribe` ends at once and leaves nothing running."""
        async with TcpProxy(port) as proxy:
            broker = await opened(proxy.port)
            proxy.black_hole()
            late = await opened(proxy.port, connect=False)
            calls = [broker.probe(), broker.request(("t",), b""), broker.subscribe(("t",), Recorder()), late.connect()]
            tasks = [asyncio.create_task(call, name="cancelled") for call in calls]  # type: ignore[arg-type]
            for _ in range(5):
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            done, pending = await asyncio.wait(tasks, timeout=20)
            assert not pending
            assert all(task.cancelled() for task in done)
