"""Between two bridges a listener says nothing that the next one could take for its own (I3, S1)."""

from __future__ import annotations

import msgspec
import pytest

from bridge.brokers import SCHEMES
from bridge.contract.wire import Bye, Cover, Hello, ListenerHeartbeat, QueueBeat, Subscription, Welcome, encode_frame
from listeners.session.channels.brokered import BrokeredChannel
from tests.support.memory_broker import SERVERS, MemoryServer
from tests.support.sim_loop import pass_time, simulated

INSTANCE = "1" * 32
OLD, NEW = "a" * 32, "b" * 32
QUEUE = "billing/orders"
DOWN = ("queuebell", "session", INSTANCE, "down")


def down(frame: dict[str, object], boot: str, seq: int) -> bytes:
    return msgspec.json.encode({**frame, "instance": INSTANCE, "seq": seq, "boot": boot})


def welcome(boot: str, seq: int) -> bytes:
    frame = msgspec.json.decode(encode_frame(Welcome(boot, 5000, 60_000, 1, [])))
    return down(frame, boot, seq)


@simulated
async def test_levels_of_the_old_boot_are_not_said_to_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `unknown_session` only hello and bye leave, until somebody says welcome."""
    monkeypatch.setitem(SCHEMES, "mem", ("tests.support.memory_broker", "NamedBroker"))
    server = SERVERS["between"] = MemoryServer()
    link = await BrokeredChannel("mem://between", INSTANCE).connect()
    hello = Hello(INSTANCE, "one", [Subscription(QUEUE, 1)])
    beat = ListenerHeartbeat(1, {QUEUE: QueueBeat(gen=57, covered=57)})
    cover = Cover(QUEUE, OLD, 57, 0)

    def said() -> list[str]:
        found = [msgspec.json.decode(payload)["type"] for topic, payload in server.log if topic[-1] != "down"]
        server.log.clear()
        return found

    link.send(hello)
    server.deliver(DOWN, welcome(OLD, 1))
    await pass_time(0.1)
    link.send(beat)
    assert said() == ["hello", "heartbeat"]
    server.deliver(DOWN, down({"type": "error", "code": "unknown_session", "message": ""}, OLD, 2))
    await pass_time(0.1)
    link.send(hello)
    link.send(beat)
    link.send(cover)
    assert said() == ["hello"]
    server.deliver(DOWN, welcome(NEW, 1))
    await pass_time(0.1)
    link.send(beat)
    link.send(Bye())
    assert said() == ["heartbeat", "bye"]
    await link.close()
