"""``queuebell key nats`` and ``key mqtt``, and ``queuebell serve --auth`` with a broker."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from bridge.brokers import open_broker
from listeners import Listener, Message
from tests.queuebell.command.test_key import created, key
from tests.support.command import perform, serving
from tests.support.processes import free_port, until


def test_mosquitto_is_told_what_each_may(tmp_path: pathlib.Path) -> None:
    """Every form of a pattern, each topic once, and nobody who has nothing to do there."""
    for name, *grants in (
        ("producer", "ring=billing/*", "ring=billing/orders", "ring=shop/cart", "put=*"),
        ("worker", "take=parts/boxes:2"),
        ("person", "look=*", "look=shop/*", "manage=*", "operate=*"),
        ("putter", "put=*"),
        ("partitions", "ring=parts/boxes:2"),
    ):
        secret = created(tmp_path, name, *grants)
        assert secret not in key(tmp_path, "mqtt")
    told = [line for line in key(tmp_path, "mqtt").splitlines() if line and not line.startswith("#")]
    echo = "topic readwrite queuebell/echo/+"
    assert told == [
        "user queuebell-bridge", "topic readwrite queuebell/trigger/+/+", echo,
        "topic write queuebell/session/+/down", "topic write queuebell/wake/+/+",
        "topic read queuebell/hello", "topic read queuebell/session/+/up",
        "user partitions", echo,
        "topic write queuebell/trigger/parts/boxes-p0", "topic write queuebell/trigger/parts/boxes-p1",
        "user person", echo, "topic read queuebell/wake/+/+",
        "user producer", echo, "topic write queuebell/trigger/billing/+", "topic write queuebell/trigger/shop/cart",
        "user worker", echo, "topic write queuebell/hello", "topic write queuebell/session/+/up",
        "topic read queuebell/session/+/down",
    ]  # fmt: skip
    passwords = [line for line in key(tmp_path, "mqtt").splitlines() if "mosquitto_passwd" in line]
    assert [line.split()[-1] for line in passwords] == [
        "queuebell-bridge",
        "partitions",
        "person",
        "producer",
        "worker",
    ]


def test_what_is_changed_is_what_a_broker_is_told(tmp_path: pathlib.Path) -> None:
    """`key change` changes it as `key create` does; limits and certificates are the bridge's own, and no broker's."""
    created(tmp_path, "worker", "take=a/x")
    before = {name: key(tmp_path, name) for name in ("nats", "mqtt")}
    key(tmp_path, "change", "worker", "--limit", "connections=1", "--certificate", "DNS:w.internal")
    assert {name: key(tmp_path, name) for name in ("nats", "mqtt")} == before
    key(tmp_path, "change", "worker", "--allow", "look=a/x")
    assert "topic read queuebell/wake/a/x" in key(tmp_path, "mqtt")
    assert "queuebell.hello" not in key(tmp_path, "nats").partition('"worker"')[2]


def test_nats_is_told_what_each_may(tmp_path: pathlib.Path) -> None:
    """Each with an inbox and a password variable of its own, below the prefix that the settings have."""
    for name in ("a-b", "a_b", "A-b"):
        created(tmp_path, name, "ring=x/y")
    told = key(tmp_path, "nats", "--prefix", "site7")
    users = [line.strip() for line in told.splitlines() if "user:" in line]
    assert users == [
        'user: "queuebell-bridge", password: $NATS_PASSWORD_QUEUEBELL_BRIDGE',
        'user: "A-b", password: $NATS_PASSWORD_A_B',
        'user: "a-b", password: $NATS_PASSWORD_A_B_2',
        'user: "a_b", password: $NATS_PASSWORD_A_B_3',
    ]
    assert 'publish: ["site7.trigger.x.y", "_INBOX.a-b.>"]' in told
    assert 'subscribe: ["_INBOX.a-b.>"]' in told
    assert told.count("allow_responses") == 1, "only the bridge answers others"
    by_setting = perform("key", "nats", "--data", str(tmp_path), env={"QUEUEBELL_PREFIX": "site7"})
    assert by_setting.stdout.decode() == told


@pytest.mark.parametrize("kind", ["nats", "mqtt"])
def test_what_is_refused(kind: str, tmp_path: pathlib.Path) -> None:
    """A prefix that is none, no access file, and a principal that is called as the bridge is."""
    assert "cannot read" in key(tmp_path, kind, code=78)
    created(tmp_path, "worker", "take=*")
    assert "prefix: is letters" in key(tmp_path, kind, "--prefix", "a.b", code=78)
    created(tmp_path, "queuebell-bridge", "take=*")
    assert "call this principal otherwise" in key(tmp_path, kind, code=78)


@pytest.mark.parametrize("trust", [(), ("--trust-brokers",)], ids=["untrusted", "trusted"])
async def test_a_bridge_with_auth_and_a_server_of_its_own(trust: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    """A worker with its key is let in over NATS; triggers are counted and refused, or taken where that is trusted."""
    secret = created(tmp_path, "worker", "take=a/x")
    nats = f"nats://127.0.0.1:{free_port()}"
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: Message) -> None:
        await handled.put(message.body)

    with serving(tmp_path, "--auth", "--nats", nats.replace("nats://127.0.0.1", "embedded"), *trust) as bridge:
        worker = Listener(bridge.url, "a/x", handle, bridge=nats, api_key=secret)
        running = asyncio.create_task(worker.run(), name="worker")
        await until(lambda: worker.state().session, "a session over NATS")
        broker = open_broker(nats)
        await broker.connect()
        if trust:
            await broker.request(("queuebell", "trigger", "a", "y"), b"")
        else:
            broker.publish(("queuebell", "trigger", "a", "y"), b"")
        await broker.close()
        await worker.stop()
        await running
        code, log = await asyncio.to_thread(bridge.stop)
    assert code == 0
    assert ("trust_brokers = true" in log) is (not trust)
    assert ("verb=ring queue=a/y" in log) is (not trust)
    assert secret not in log
