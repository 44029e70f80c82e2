"""The dashboard and the alerts, asked of a real Prometheus that scrapes real bridges under load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from queuebell.bridge import Bridge
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.redis.store import RedisStore
from queuebell.bridge.service.bridge import BridgeSettings
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from queuebell.listeners import Bury, Listener, Message
from tests.support.access import written
from tests.support.brokers import NatsServer
from tests.support.processes import until
from tests.support.prometheus import OBSERVE, Prometheus
from tests.support.redis import RedisServer
from tests.support.web import serving

pytestmark = pytest.mark.system

DASHBOARD: Final = json.loads((OBSERVE / "grafana.json").read_text())
RULES: Final = yaml.safe_load((OBSERVE / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES: Final = {"$job": ".*", "$queue": ".*", "$__rate_interval": "1m"}

QUIET: Final = {
    "queuebell_workers": "no scaler runs here", "queuebell_worker_starts_total": "likewise",
    "queuebell_worker_failures_total": "likewise",
    "queuebell_refusals_total": "nobody is refused", "queuebell_puts_refused_total": "likewise",
    "queuebell_cluster_forgiven_total": "these two bridges share no work",
}  # fmt: skip
"""What the load does not bring about."""


def promtool(*words: str) -> None:
    """Run promtool on our files."""
    done = subprocess.run(["promtool", *words], cwd=OBSERVE, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")],
)
def test_promtool_takes_the_rules_and_their_tests(words: tuple[str, ...]) -> None:
    promtool(*words)


def sharp(rules: str) -> str:
    """Return the rules with nothing to wait for: no duration, and thresholds of seconds."""
    return re.sub(r"(_seconds(?:\{[^}]*\})?\) >) \d+", r"\1 1", re.sub(r"for: \w+", "for: 0s", rules))


def substituted(expression: str) -> str:
    """Return a query of the dashboard as Grafana would ask it."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


@contextlib.asynccontextmanager
async def bridged(**options: Any) -> AsyncIterator[tuple[Bridge, str]]:
    """Serve a bridge that sweeps every second, and say where."""
    settings = BridgeSettings(periods=Periods(heartbeat_s=0.2, sweep_s=1.0, slack_s=5.0, start_ack_s=0.5))
    async with Bridge(settings=settings) as bridge:
        buses = Attachments(bridge, **options) if options else contextlib.nullcontext()
        async with buses, WebServer(bridge, WebSettings(port=0, shutdown_timeout=0.2)) as server:
            yield bridge, f"127.0.0.1:{server.port}"


class Load:
    """What real workers of one bridge do."""

    def __init__(self, stack: contextlib.AsyncExitStack, bridge: Bridge) -> None:
        self.bridge = bridge
        self._stack = stack

    async def work(self, store: Any, queue: str, handler: Callable[[Message], Any], **options: Any) -> Listener:
        """Run a worker until the end."""
        listener = Listener(store, queue, handler, bridge=self.bridge, handle_signals=False, grace=0, **options)
        running = asyncio.create_task(listener.run(), name=queue)

        async def end() -> None:
            await listener.stop()
            await running

        self._stack.push_async_callback(end)
        await until(lambda: listener.state().mode == "push", f"the worker of {queue} is welcome")
        return listener

    def ring(self, queue: str) -> None:
        """Publish."""
        account, _, name = queue.partition("/")
        self.bridge.trigger([CloudQueueWorkDetected(account, name)], bus="http")


async def done(message: Message) -> None:
    """Handle a message."""


async def failing(message: Message) -> None:
    """Fail."""
    raise ValueError("no such customer")


async def burying(message: Message) -> None:
    """Give a message up."""
    raise Bury("no such customer")


async def holding(message: Message) -> None:
    """Never end."""
    await asyncio.get_running_loop().create_future()


async def test_each_query_and_each_alert_is_answered_by_what_bridges_tell(tmp_path: Path) -> None:
    """Of work that is done, fails, is given up, lost, held for too long, put without a word, or left alone."""
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        redis, away, nats = (
            RedisServer(tmp_path / "redis"),
            RedisServer(tmp_path / "away"),
            NatsServer(tmp_path / "nats"),
        )
        for server in (redis, away, nats):
            await enter(server)
        bridge, address = await enter(bridged())
        # Two bridges of two clusters by one name of subjects: each refuses the other.
        pair = []
        for name in ("shop", "office"):
            bus = BusSettings(cluster={"name": name, "address": name})
            pair.append((await enter(bridged(nats=[f"nats://127.0.0.1:{nats.port}"], settings=bus)))[1])
        rules = tmp_path / "alerts.yml"
        rules.write_text(sharp((OBSERVE / "alerts.yml").read_text()))
        prometheus = await enter(
            Prometheus(
                tmp_path / "prometheus",
                json.dumps(
                    {
                        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
                        "rule_files": [str(rules)],
                        "scrape_configs": [
                            {"job_name": "queuebell", "static_configs": [{"targets": [address]}]},
                            {"job_name": "pair", "static_configs": [{"targets": pair}]},
                        ],
                    }
                ),
            )
        )
        store, dead = await enter(RedisStore(redis.url())), await enter(RedisStore(away.url()))
        load = Load(stack, bridge)
        for queue, handler in (
            ("own/done", done),
            ("own/fails", failing),
            ("own/buried", burying),
            ("own/held", holding),
        ):
            await load.work(bridge, queue, handler, max_attempts=1, visibility_timeout=2)
        await load.work(store, "far/lost", done)
        await load.work(store, "far/slow", holding, concurrency=1)
        await load.work(dead, "far/away", done)

        await prometheus.has('queuebell_unannounced_total{queue="far/lost"} == 0')
        await store.put("far/lost", ["put, and not published"])
        load.ring("far/nobody")
        await away.kill()
        load.ring("far/away")
        await store.put("far/slow", [str(number) for number in range(5)])
        load.ring("far/slow")
        for before in range(3):
            for queue in ("own/done", "own/fails", "own/buried", "own/held"):
                await bridge.store.put(queue, [NewMessage(b"x")])
            handled = f'queuebell_handled_total{{queue="own/buried", outcome="buried"}} > {before}'
            await prometheus.has(handled)
            # Somebody clears the queue beneath its worker: the lease is nobody's any more.
            await bridge.store.clear("own/held")

        lost = await prometheus.fires("QueuebellPublishLost", queue="far/lost")
        assert "put and not published" in lost["annotations"]["summary"]
        for alert, labels in (
            ("NoListener", {"queue": "far/nobody"}),
            ("StoreFails", {"queue": "far/away"}),
            ("WorkWaits", {"queue": "far/slow"}),
            ("LeasesLost", {"queue": "own/held"}),
            ("Burials", {"queue": "own/buried"}),
            ("Burials", {"queue": "own/fails"}),
            ("ClusterSplit", {"job": "pair"}),
        ):
            fired = await prometheus.fires(f"Queuebell{alert}", **labels)
            told = " ".join(fired["annotations"].values())
            assert next(iter(labels.values())) in told and "error" not in told and "<no value>" not in told

        problems = []
        for panel in PANELS:
            for target in panel["targets"]:
                expression = substituted(target["expr"])
                found = await prometheus.query(expression)
                if not found and not any(name in expression for name in QUIET):
                    problems.append(f"{panel['title']}: {expression} gives nothing")
                for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                    if any(label not in series["metric"] for series in found):
                        problems.append(f"{panel['title']}: {label} is no label of {expression}")
        for rule in RULES:
            await prometheus.query(rule["expr"])
        assert not problems, "\n".join(problems)
        firing = {each["labels"]["alertname"] for each in (await prometheus.ask("alerts"))["alerts"]}
        assert not firing & {"QueuebellBug", "QueuebellBridgeDown", "QueuebellOwnStoreFails", "QueuebellBusDown"}
        lost_on = {each["metric"]["queue"] for each in await prometheus.query("queuebell_unannounced_total > 0")}
        # A machine that stood still for half a second may have put the second one's trigger too late.
        assert "far/lost" in lost_on <= {"far/lost", "far/slow"}

        await nats.kill()
        await prometheus.fires("QueuebellBusDown", job="pair")


async def test_a_scrape_with_a_key(tmp_path: Path) -> None:
    """The example's lines for a bridge that asks for one are right, and without them nothing is read."""
    access = tmp_path / "access.json"
    secrets = written(access, {"prometheus": {"operate": ["*"]}})
    (tmp_path / "prometheus.key").write_text(secrets["prometheus"] + "\n")
    example = (OBSERVE / "prometheus.yml").read_text().replace("15s", "500ms")
    with_key = example.replace("# authorization:", "authorization:").replace(
        "#   credentials_file: prometheus.key", f"  credentials_file: {tmp_path / 'prometheus.key'}"
    )
    async with AccessWatch(access) as watch, serving(access=watch) as served:
        for name, configuration, up in (("with", with_key, 1), ("without", example, 0)):
            configuration = configuration.replace("127.0.0.1:8470", f"127.0.0.1:{served.server.port}")
            configuration = configuration.replace("[alerts.yml]", f"[{OBSERVE / 'alerts.yml'}]")
            async with Prometheus(tmp_path / name, configuration) as prometheus:
                await prometheus.has(f'up{{job="queuebell"}} == {up}')
