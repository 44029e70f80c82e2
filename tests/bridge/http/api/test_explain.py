"""``GET /v1/queues/{account}/{queue}/explain`` over the wire, and the command that shows it."""

from __future__ import annotations

import asyncio
import json
import pathlib
import urllib.request

from bridge.contract.wire import Hello, Subscription
from bridge.service.state import Subject
from tests.support.command import serving as serving_process
from tests.support.web import Served

PATH = "/v1/queues/billing/orders/explain"


async def test_sessions_streams_and_subjects(served: Served) -> None:
    """What the rules know and what the channels know stand in one object."""
    unknown = await served.ask("GET", PATH)
    assert (unknown.status, unknown.code) == (404, "queue_not_found")
    served.server.subjects.append(lambda: [Subject("nats", "nats", "q", True)])
    connection = served.bridge.local_channel()
    link = await connection.connect()
    link.send(Hello(instance="a" * 32, listener="one", queues=[Subscription("billing/orders", 4)]))
    await link.receive()
    async with served.client() as stream:
        await stream.send(b"GET /v1/wakes?queue=billing/orders HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await stream.reader.readuntil(b"\r\n\r\n")
        found = await served.ask("GET", PATH)
        assert found.status == 200
        (session,) = found.json["sessions"]
        assert (session["listener"], session["channel"], session["free"]) == ("one", "local", 4)
        # A queue never heard of is born dirty, and the first that comes is asked to look.
        assert (found.json["outcome"], session["gets"], session["why"]) == ("joins", True, "owner")
        assert [(row["channel"], row["hears"]) for row in found.json["subscribers"]] == [
            ("sse", True),
            ("nats", True),
        ]
        assert found.json["subscribers"][1]["topic"] == "q.wake.billing.orders"
    await link.close()
    assert (await served.ask("POST", PATH)).status == 405


def test_the_command(tmp_path: pathlib.Path) -> None:
    """In words, as JSON, and with exit code 1 for a queue never heard of."""
    with serving_process(tmp_path) as bridge:
        assert bridge.client("explain", "billing/orders", code=1) == ""
        with urllib.request.urlopen(
            urllib.request.Request(f"{bridge.url}/v1/triggers/billing/orders", method="POST"), timeout=100
        ) as answer:
            assert answer.status == 202
        assert bridge.client("explain", "billing/orders") == (
            "billing/orders: nobody listens; a trigger now waits for the first that comes\n"
            "  no listener is subscribed; work was announced; nothing is received until one starts\n"
        )
        assert json.loads(bridge.client("explain", "billing/orders", "--json"))["outcome"] == "no_session"
        assert "ACCOUNT/QUEUE" in bridge.client("explain", "--help")
        assert bridge.client("explain", "no reference", code=2) == ""


def test_the_command_with_a_listener_and_a_stream(tmp_path: pathlib.Path) -> None:
    """A table for sessions and another for plain subscribers."""
    with serving_process(tmp_path) as bridge:
        url = f"{bridge.url}/v1/wakes?queue=billing/orders"
        with urllib.request.urlopen(url, timeout=100):

            async def shown() -> str:
                from listeners import Listener

                listener = Listener(
                    bridge.url, "billing/orders", print, bridge=bridge.url, name="one", handle_signals=False
                )
                running = asyncio.create_task(listener.run(), name="worker")
                while not listener.state().session:
                    await asyncio.sleep(0.01)
                text = await asyncio.to_thread(bridge.client, "explain", "billing/orders")
                await listener.stop()
                await running
                return text

            lines = asyncio.run(shown()).splitlines()
    assert any(line.split()[:2] == ["LISTENER", "CHANNEL"] for line in lines)
    assert any(line.split()[:2] == ["one", "websocket"] for line in lines), lines
    assert any(line.startswith("event stream") and " sse " in line for line in lines), lines
