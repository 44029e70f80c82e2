"""What every broker adapter keeps, asked of a real broker. A subclass provides the fixtures `server` and `opened`."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from bridge.brokers.base import ANY, Broker, Incoming, Topic
from bridge.contract.errors import BadInput, BusUnavailable, Closed
from tests.support.brokers import Flood, RealBroker
from tests.support.tcp_proxy import TcpProxy

PATIENCE_S = 200.0


class Opened(Protocol):
    """Makes brokers that are closed when the test ends."""

    async def __call__(self, port: int | None = None, *, connect: bool = True, **options: Any) -> Broker:
        """Return a broker at ``port`` (else the server's own), connected unless told not to."""
        ...


class Ear:
    """Keeps what it hears and can be waited for."""

    def __init__(self, answer: Callable[[Incoming], None] = lambda _: None) -> None:
        self.heard: list[Incoming] = []
        self._answer = answer
        self._news = asyncio.Event()

    def __call__(self, incoming: Incoming) -> None:
        self.heard.append(incoming)
        self._news.set()
        self._answer(incoming)

    @property
    def payloads(self) -> list[bytes]:
        return [incoming.payload for incoming in self.heard]

    async def has(self, count: int) -> list[Incoming]:
        """Wait for so many in all."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(self.heard) < count:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"heard {len(self.heard)} of {count}: {self.payloads[-3:]}") from None
        return self.heard


async def publish_all(broker: Broker, topic: Topic, payloads: list[bytes]) -> None:
    """Publish without ever overrunning the buffer."""
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
    """The promise of `bridge.brokers.base`, sentence by sentence."""

    describes = True
    """Whether content type and headers are carried."""
    knows_nobody = True
    """Whether a request that nobody hears is told from one that is heard."""
    lossless = True
    """Whether the broker itself drops nothing for a subscriber that is slow for a second."""

    async def test_nothing_is_lost_after_subscribe(self, opened: Opened) -> None:
        """What another publishes right after `subscribe` returned is heard, 200 times of 200 (trap 3.1)."""
        hearing, speaking = await opened(), await opened()
        for turn in range(200):
            ear, topic = Ear(), ("t", f"turn-{turn}")
            await hearing.subscribe(topic, ear)
            assert speaking.publish(topic, b"first")
            assert (await ear.has(1))[0].topic == topic

    async def test_order(self, opened: Opened) -> None:
        """5000 messages are heard once each, in the order of their publishing."""
        hearing, speaking, ear = await opened(), await opened(), Ear()
        await hearing.subscribe(("t", "order"), ear)
        sent = [str(number).encode() for number in range(5000)]
        await publish_all(speaking, ("t", "order"), sent)
        await ear.has(len(sent))
        await hearing.barrier()
        assert ear.payloads == sent
        assert hearing.dropped == 0

    async def test_patterns(self, opened: Opened) -> None:
        """ANY stands for exactly one token, wherever it is."""
        broker, ear = await opened(), Ear()
        await broker.subscribe(("p", ANY, "x", ANY), ear)
        for topic in [("p", "a", "x"), ("p", "a", "x", "b", "c"), ("p", "a", "y", "b"), ("q", "a", "x", "b")]:
            assert broker.publish(topic, b"no")
        assert broker.publish(("p", "a", "x", "b"), b"yes")
        await broker.barrier()
        assert [(each.topic, each.payload) for each in await ear.has(1)] == [(("p", "a", "x", "b"), b"yes")]

    @pytest.mark.parametrize("token", ["", "a.b", "a/b", "*", "+", ">", "#", "a b", "a\r\nPUB x 0", "a\x00"])
    async def test_no_token_smuggles(self, opened: Opened, token: str) -> None:
        """A token with a separator, a wildcard, a space or a line break in it goes nowhere."""
        broker = await opened()
        with pytest.raises(BadInput):
            broker.publish(("t", token), b"")
        with pytest.raises(BadInput):
            await broker.request(("t", token), b"")
        if token != ANY:
            with pytest.raises(BadInput):
                await broker.subscribe(("t", token), Ear())
        assert await broker.probe() < 2

    async def test_shared_subscriptions_are_refused(self, opened: Opened) -> None:
        """`$share` is refused: NATS's MQTT listener grants it and delivers nothing, and triggers are never shared."""
        broker = await opened()
        with pytest.raises(BadInput):
            await broker.subscribe(("$share", "group", "t"), Ear())

    async def test_described(self, opened: Opened) -> None:
        """Content type and headers arrive where the protocol has them, names in lower case; payloads are bytes."""
        broker, ear = await opened(), Ear()
        await broker.subscribe(("t", "d"), ear)
        assert broker.publish(("t", "d"), b"\x00\xff", content_type="application/json", headers={"CE-Id": "grün"})
        assert broker.publish(("t", "d"), b"")
        first, second = await ear.has(2)
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
        """Before `connect`, everything says so; a connection is made once; `close` may be called twice."""
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
        """Where no broker answers, or something that never says a word, `connect` says so within 5 s."""
        async with TcpProxy(server.port) as proxy:
            proxy.refusing = True
            for broker in (await opened(proxy.port, connect=False), await opened(9, connect=False)):
                with pytest.raises(BusUnavailable):
                    await broker.connect()
                assert await broker.broken()

    async def test_barrier(self, opened: Opened, server: RealBroker, port: int) -> None:
        """What was published before the barrier is with the broker, even if the connection is cut at that moment."""
        async with TcpProxy(port) as proxy:
            hearing, speaking, ear = await opened(), await opened(proxy.port), Ear()
            await hearing.subscribe(("t", "b"), ear)
            for number in range(1000):
                assert speaking.publish(("t", "b"), str(number).encode())
            await speaking.barrier()
            proxy.cut()
            await ear.has(1000)
            await speaking.broken()
            with pytest.raises(BusUnavailable):
                await speaking.barrier()

    async def test_request(self, opened: Opened) -> None:
        """A request returns once somebody has it; where nobody listens it says so at once, if the broker can tell."""
        broker, other = await opened(), await opened()

        def answer(incoming: Incoming) -> None:
            if incoming.reply_to is not None:
                assert other.publish(incoming.reply_to, b"")

        ear = Ear(answer)
        await other.subscribe(("t", "r", ANY), ear)
        await asyncio.gather(*(broker.request(("t", "r", str(number)), b"x") for number in range(50)))
        assert sorted(int(each.topic[2]) for each in await ear.has(50)) == list(range(50))
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
        """Connected and deaf, or dumb, is what only the probe finds."""
        async with TcpProxy(port) as proxy:
            brokers = [await opened(proxy.port), await opened(proxy.port)]
            proxy.down.swallow = True
            monkeypatch.setattr("bridge.brokers.connection.PROBE_S", 0.1)
            found = await asyncio.gather(*(broker.probe() for broker in brokers), return_exceptions=True)
            assert [type(each) for each in found] == [BusUnavailable, BusUnavailable]
            started = loop_time()
            await asyncio.gather(*(broker.close() for broker in brokers))
            assert loop_time() - started < 20

    async def test_half_open_with_full_buffers(self, opened: Opened, port: int) -> None:
        """With everything unsent that fits, `publish` refuses, `writable` says no, and `close` still ends in 2 s."""
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
        """Within 1 s of a kill -9 of the broker `broken` returns, and nothing is taken any more."""
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
            await broker.subscribe(("t",), Ear())

    async def test_cut_under_load(self, opened: Opened, port: int) -> None:
        """A connection reset amid publishing breaks; `publish` turns False and raises nothing."""
        async with TcpProxy(port) as proxy:
            broker, ear = await opened(proxy.port), Ear()
            await broker.subscribe(("t", "cut"), ear)
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
        monkeypatch.setattr("bridge.brokers.connection.PROBE_S", 0.1)
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
        broker, ear = await opened(), Ear()
        await broker.subscribe(("t", "again"), ear)
        assert broker.publish(("t", "again"), b"x")
        await ear.has(1)

    async def test_bytes_one_by_one(self, opened: Opened, port: int) -> None:
        """Frames torn into single bytes in both directions arrive whole."""
        async with TcpProxy(port) as proxy:
            proxy.up.one_byte = proxy.down.one_byte = True
            broker, ear = await opened(proxy.port), Ear()
            await broker.subscribe(("t", "torn"), ear)
            sent = [bytes([number]) * number for number in range(60)]
            await publish_all(broker, ("t", "torn"), sent)
            await ear.has(len(sent))
            assert ear.payloads == sent

    async def test_dropped_bytes(self, opened: Opened, port: int) -> None:
        """A stream with a hole in it ends the connection or makes it deaf: it is never taken for sound."""
        async with TcpProxy(port) as proxy:
            broker, other, ear = await opened(proxy.port), await opened(), Ear()
            await broker.subscribe(("t", "hole"), ear)
            proxy.down.drop = 7
            await publish_all(other, ("t", "hole"), [b"x" * 50] * 20)
            await other.barrier()

            async def found() -> None:
                for _ in range(10):
                    await broker.probe()

            with pytest.raises(BusUnavailable):
                await found()
            assert all(payload == b"x" * 50 for payload in ear.payloads[:-2])

    async def test_big(self, opened: Opened) -> None:
        """900 kB arrive whole; more than the broker takes is refused, and the connection lives on."""
        broker, ear = await opened(), Ear()
        await broker.subscribe(("t", "big"), ear)
        assert broker.publish(("t", "big"), b"b" * 900_000)
        assert (await ear.has(1))[0].payload == b"b" * 900_000
        if broker.kind == "nats":
            assert not broker.publish(("t", "big"), bytes(2_000_000))
            with pytest.raises(BadInput):
                await broker.request(("t", "big"), bytes(2_000_000))
        assert await broker.probe() < 2

    async def test_slow_hearer(self, opened: Opened, port: int) -> None:
        """100,000 messages for a hearer that is slower than they come: in order, none twice, memory bounded."""
        last, gaps, heard = -1, 0, 0

        def hear(incoming: Incoming) -> None:
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
        await broker.subscribe(("t", "flood"), hear)
        before = peak_mib()
        flood = Flood(broker.kind, port, ("t", "flood"), 100_000, 200)
        flood.start()
        async with asyncio.timeout(PATIENCE_S * 2):
            while flood.is_alive():
                await asyncio.sleep(0.01)
            quiet = -1
            while quiet != heard:  # what is behind the flood is heard after it
                quiet = heard
                with contextlib.suppress(BusUnavailable):
                    await broker.barrier()
        assert peak_mib() - before < 48
        if self.lossless:
            assert (heard, gaps, broker.dropped) == (100_000, 0, 0)
        assert heard > 1000

    async def test_hear_that_raises(self, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
        """An exception in a hearer costs that message and one line, not the connection (trap 3.6)."""

        def fail(incoming: Incoming) -> None:
            if incoming.payload != b"last":
                raise RuntimeError("a fault in the hearer")

        broker, ear = await opened(), Ear(fail)
        await broker.subscribe(("t", "f"), ear)
        await publish_all(broker, ("t", "f"), [*[b"x"] * 100, b"last"])
        await ear.has(101)
        assert await broker.probe() < 2
        assert len([record for record in caplog.records if record.name == "queuebell.broker"]) == 1

    async def test_two_clients(self, opened: Opened) -> None:
        """Two connections of one name live side by side, and each hears everything."""
        brokers, ears = [await opened(), await opened()], [Ear(), Ear()]
        for broker, ear in zip(brokers, ears, strict=True):
            await broker.subscribe(("t", "two"), ear, at_least_once=True)
        for broker in brokers:
            await publish_all(broker, ("t", "two"), [b"x"] * 10)
        for ear in ears:
            await ear.has(20)

    async def test_close_brings_what_was_published(self, opened: Opened) -> None:
        """What `publish` took before `close` arrives."""
        hearing, speaking, ear = await opened(), await opened(), Ear()
        await hearing.subscribe(("t", "c"), ear)
        for _ in range(500):
            assert speaking.publish(("t", "c"), bytes(200))
        await speaking.close()
        await ear.has(500)

    async def test_cancelled(self, opened: Opened, port: int) -> None:
        """A cancelled `connect`, `probe`, `request` or `subscribe` ends at once and leaves nothing running."""
        async with TcpProxy(port) as proxy:
            broker = await opened(proxy.port)
            proxy.black_hole()
            late = await opened(proxy.port, connect=False)
            calls = [broker.probe(), broker.request(("t",), b""), broker.subscribe(("t",), Ear()), late.connect()]
            tasks = [asyncio.create_task(call, name="cancelled") for call in calls]  # type: ignore[arg-type]
            for _ in range(5):
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            done, pending = await asyncio.wait(tasks, timeout=20)
            assert not pending
            assert all(task.cancelled() for task in done)
