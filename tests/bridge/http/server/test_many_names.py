"""More queue names than are kept, over HTTP: work elsewhere goes on, and `/readyz`, findings and `check` say so."""

from __future__ import annotations

import msgspec

from bridge.contract.wire import Hello, Subscription
from bridge.core.settings import Periods
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.queues.base import NewMessage
from bridge.service.bridge import Bridge, BridgeSettings
from bridge.service.checking import judge
from bridge.service.state import Findings, Readiness
from tests.support.ear import Ear
from tests.support.web import Served

LIMIT = 50


def names(count: int, prefix: str) -> list[dict[str, str]]:
    """Return a batch of triggers, each for a name of its own."""
    return [{"storage_account": "flood", "queue_name": f"{prefix}{number}"} for number in range(count)]


async def test_a_flood_of_names_wedges_nobody() -> None:
    """Anybody may publish: afterwards new queues are rung, put to and listened to, and it is said what happened."""
    periods = Periods(queues_max=LIMIT)
    async with (
        Bridge(settings=BridgeSettings(periods=periods)) as bridge,
        WebServer(bridge, WebSettings(port=0, shutdown_timeout=0.2)) as server,
    ):
        served = Served(bridge, server)
        for batch in range(5):
            asked = await served.trigger(names(LIMIT, f"q{batch}-"))
            assert (asked.status, asked.json) == (202, {"accepted": LIMIT})
        assert (await served.ask("POST", "/v1/triggers/billing/orders")).status == 202
        await bridge.store.put("billing/own", [NewMessage(b"x")])
        ear = Ear()
        session = bridge.connect(ear)
        session.feed(Hello("1" * 32, "one", [Subscription("billing/orders", 1), Subscription("billing/late", 1)]))
        assert [type(frame).__name__ for frame in ear.said] == ["Welcome", "Wake", "Wake"]
        assert len(bridge.bell.ledger.debts) <= LIMIT + 3
        ready = await served.ask("GET", "/readyz")
        assert ready.status == 200 and f"at most {LIMIT} names" in ready.json["checks"]["queues"]["detail"]
        found = await served.ask("GET", "/v1/findings")
        problems = judge(
            msgspec.json.decode(ready.body, type=Readiness), msgspec.json.decode(found.body, type=Findings), []
        )
        assert "crowded" in [problem.code for problem in problems]
        metrics = (await served.ask("GET", "/metrics")).body
        assert b"queuebell_queues_unknown" in metrics
        session.ended("done")
