"""`queuebell check`: the configuration without starting it, and the health of a bridge that runs."""

from __future__ import annotations

import asyncio
import http.server
import json
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest

from queuebell.command import reaching
from queuebell.command.main import main
from tests.support.brokers import NatsServer
from tests.support.command import perform, serving
from tests.support.postgres import running
from tests.support.processes import GLANCE_S


@pytest.fixture
def nobody() -> str:
    """Return an address where no bridge answers."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def check(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, nobody: str
) -> Callable[..., tuple[int, str, str]]:
    """Return how to run the command with a configuration and see code, output and error."""

    def run(text: str, *words: str) -> tuple[int, str, str]:
        file = tmp_path / "queuebell.toml"
        file.write_text(text.replace("{data}", str(tmp_path / "data")))
        file.chmod(0o600)  # some hold secrets, and a warning is not what is asked for
        monkeypatch.setenv("QUEUEBELL_BRIDGE", nobody)
        code = main(["check", "--config", str(file), *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_what_keda_costs_is_said_where_it_is_served(check: Callable[..., tuple[int, str, str]]) -> None:
    """In counts an hour of a queue in another store."""
    code, out, _ = check('keda = "127.0.0.1:8475"\ndata = "{data}"\n')
    assert code == 0
    assert "KEDA: a stream costs no count of own queues; one in another store is counted 120 times an hour" in out
    assert "KEDA" not in check('data = "{data}"\n')[1]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[queue]]\nmatch = 'a/b'\nsweep_s = -1\n", "sweep_s"),
        ("[[queue]]\nmatch = 'a/b'\nswep_s = 1\n", "swep_s"),
        ("[[queue]]\nmatch = 'a/b'\nwake = 'some'\n", "wake"),
        ("[[queue]]\nsweep_s = 1\n", "match"),
        ("[[queue]]\nmatch = 'a'\n", "queue 1: match"),
        ("[[queue]]\nmatch = 'a/*'\n[[queue]]\nmatch = 'a/b'\n", "queue 2: match"),
        ("[[queue]]\nmatch = 'a/b'\nhard_look_s = 600\n", "queue 1: unknown key 'hard_look_s'"),
        ("queue = 3\n", "queue"),
        ("hard_look_s = 600\n", "unknown key 'hard_look_s'"),
        ("slack_s = 0\n", "slack_s"),
        ("listen = '0.0.0.0:8470'\n", "listen"),
        ("listen = '8470'\n", "listen"),
        ("nats = ['mqtt://a']\n", "nats"),
        ("ready_requires = ['mqtt']\n", "ready_requires"),
        ("data = '/dev/null/x'\n", "data"),
        ("[[webhook]]\nurl = 'https://example.org'\nqueue = 'a/b'\nsecret = 'x'\n", "webhook 1: secret"),
        ("requests_per_second = inf\n", "requests_per_second"),
        ("azure_queue = '127.0.0.1:0'\nazure_cert = \"\\u0000\"\nazure_key = 'x'\n", "azure_cert"),
        ("azure_queue = '127.0.0.1:0'\n[[azure_account]]\nname = 'a'\nkey_file = \"\\u0000\"\n", "azure_account"),
        ('data = "\\u0000"\n', "data"),
        ("x = " + "[" * 30_000 + "\n", "nested"),
    ],
)
def test_a_wrong_configuration_is_refused_as_serve_would(
    check: Callable[..., tuple[int, str, str]], text: str, named: str
) -> None:
    """Exit code 78, one line, the key named."""
    code, out, err = check(text)
    assert (code, out) == (78, "")
    assert named in err and len(err.strip().splitlines()) == 1


def test_a_bridge_that_runs_is_judged(tmp_path: pathlib.Path) -> None:
    """Well at first; with work that nobody listens for, 1, and the queue is named, here and by status and explain."""
    with serving(tmp_path / "data") as bridge:
        bridge.client("queue", "put", "billing/later", "x", "--delay-ms", "3600000")
        assert "all is well" in bridge.client("check"), "what is due in an hour does not wait"
        bridge.client("publish", "elsewhere/orders")
        bridge.client("queue", "put", "billing/orders", "x")
        out = bridge.client("check", code=1)
        assert "elsewhere/orders: no listener is subscribed; work was announced" in out
        assert "billing/orders: no listener is subscribed; 1 waiting" in out
        problems = json.loads(bridge.client("check", "--json", code=1))["problems"]
        assert [problem["code"] for problem in problems] == ["unattended", "unattended"]
        assert "elsewhere/orders: no listener is subscribed" in bridge.client("status")
        assert "no listener is subscribed; 1 waiting" in bridge.client("explain", "billing/orders")
        bridge.client("queue", "clear", "billing/orders")
        assert "billing/orders" not in bridge.client("check", code=1)


def hello(store: str) -> str:
    """Return the hello of a worker that takes ``billing/orders`` from this store."""
    queue = {"queue": "billing/orders", "capacity": 1, "store": store}
    return json.dumps({"type": "hello", "instance": store * 8, "listener": f"w-{store}", "queues": [queue]})


async def test_a_worker_that_the_bridge_rejects_is_named(tmp_path: pathlib.Path) -> None:
    """Two workers name two stores for one queue: check, status, explain, the metrics and the page's list say so."""
    with serving(tmp_path / "data") as bridge:
        async with aiohttp.ClientSession(bridge.url) as client:
            sessions = [await client.ws_connect("/v1/sessions", protocols=("queuebell.v1",)) for _ in range(2)]
            for session, store, told in zip(sessions, ("aa11", "bb22"), ("welcome", "error"), strict=True):
                await session.send_str(hello(store))
                assert (await session.receive_json())["type"] == told
            async with client.get("/metrics") as answer:
                assert 'queuebell_queue_rejected{queue="billing/orders"} 1.0' in await answer.text()
            async with client.get("/v1/watch") as answer:
                while not (line := await answer.content.readline()).startswith(b"data: "):
                    pass
            (row,) = json.loads(line.removeprefix(b"data: "))["rows"]
            why = "another listener of billing/orders uses a different store"
            assert row["trouble"].endswith(why)
            out = await asyncio.to_thread(bridge.client, "check", code=1)
            assert "w-bb22 on billing/orders: the bridge rejected w-bb22 once" in out and why in out
            for words in (("status",), ("explain", "billing/orders")):
                assert why in await asyncio.to_thread(bridge.client, *words)


def test_serve_says_what_its_numbers_promise(tmp_path: pathlib.Path) -> None:
    """Own queues first, and one line for each rule after it is ready."""
    file = tmp_path / "queuebell.toml"
    file.write_text("[[queue]]\nmatch = 'billing/*'\nsweep_s = 10\n")
    with serving(tmp_path / "data", "--config", str(file)) as bridge:
        _, log = bridge.stop()
    assert "queues billing/* in other stores: a message waits 61 s at most" in log
    assert "queues * in other stores: a message waits 116 s at most" in log
    assert log.index("queues of this service: milliseconds") < log.index("116 s")


def test_an_issuer_without_keys_is_named(
    check: Callable[..., tuple[int, str, str]], tmp_path: pathlib.Path, nobody: str
) -> None:
    """A file that is no JWKS is refused as `serve` refuses it; an address that gives none is a warning."""
    file = tmp_path / "keys.json"
    perform("key", "create", "worker", "--allow", "look=*", "--data", str(tmp_path / "data"))
    settings = 'data = "{data}"\nauth = true\n[[issuer]]\nissuer = "https://id.example/"\naudience = "queuebell"\n'
    file.write_text("{}")
    code, out, err = check(f'{settings}jwks = "{file}"\n')
    assert (code, out) == (78, "") and f"jwks: {file} cannot be used" in err
    file.unlink()
    for where in (str(file), f"{nobody}/jwks"):
        code, out, _ = check(f'{settings}jwks = "{where}"\n')
        assert code == 0 and f"warning: https://id.example/: no keys can be had from {where}: " in out


REACHED = """
nats = ["{nats}", "nats://127.0.0.1:{closed}", "embedded"]
mqtt = ["mqtt://127.0.0.1:{mqtt}"]
store = "redis://:secret@127.0.0.1:{closed}"
"""


async def test_what_is_configured_is_reached_or_not(
    check: Callable[..., tuple[int, str, str]], tmp_path: pathlib.Path, nobody: str
) -> None:
    """Each by its name in `/readyz`, all at once; what starts with the bridge is left out, and no password is shown."""
    closed = nobody.rpartition(":")[2]
    async with NatsServer(tmp_path / "nats", mqtt=True) as server:
        url = f"nats://127.0.0.1:{server.port}"
        text = REACHED.format(nats=url, mqtt=server.mqtt_port, closed=closed)
        code, out, _ = await asyncio.to_thread(check, text, "--live")
        assert code == 1
        assert f"  nats: ok, {url}: a message to ourselves took " in out and "  mqtt: ok, " in out
        assert "nats-2: NOT REACHED after " in out and "found by a sweep" in out
        assert "store: NOT REACHED after " in out and "what is in it is safe" in out
        assert "secret" not in out and "nats-3" not in out
        code, out, _ = await asyncio.to_thread(check, f'nats = ["{url}"]', "--live", "--json")
        assert code == 0
        (row,) = json.loads(out)["reached"]
        assert (row["name"], row["ok"]) == ("nats", True) and row["ms"] >= 0
    code, out, _ = await asyncio.to_thread(check, "", "--live")
    assert code == 0 and "no broker, database or engine is configured" in out


async def test_a_broker_that_says_nothing_is_given_up(
    check: Callable[..., tuple[int, str, str]], nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that takes connections and never speaks."""
    monkeypatch.setattr(reaching, "WITHIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        code, out, _ = await asyncio.to_thread(check, f'nats = ["nats://127.0.0.1:{port}"]', "--live")
    assert code == 1 and "nats: NOT REACHED after 0.2 s: no answer within 0.2 s" in out


@pytest.mark.system
async def test_a_database_is_reached_for_its_notifications_and_as_the_engine(
    check: Callable[..., tuple[int, str, str]],
) -> None:
    """One that runs, and one whose password is wrong: what is said is the database's word."""
    with running() as server:
        text = f'postgres = ["{server.url()}"]\nstore = "{server.url()}"'
        code, out, _ = await asyncio.to_thread(check, text, "--live")
        assert "  postgres: ok, " in out and "a notification to ourselves took " in out
        assert code == 1 and "store: NOT REACHED" in out and "queue init" in out
        await asyncio.to_thread(perform, "queue", "init", server.url())
        code, out, _ = await asyncio.to_thread(check, text, "--live")
        assert code == 0 and "store: ok, " in out


WELL: dict[str, tuple[int, Any]] = {
    "/readyz": (200, {"ready": True, "checks": {}}),
    "/v1/findings": (200, {"unattended": [], "sessions": [], "audit_found": 0}),
    "/v1/listeners": (200, {"listeners": []}),
    "/v1/queues": (200, {"queues": []}),
}


class Strange:
    """A server on a free port that answers by path; ``drips`` never ends an answer."""

    def __init__(self) -> None:
        self.answers = dict(WELL)
        self.raw: bytes | None = None
        self.drips = False
        self.date: str | None = None
        self.over = threading.Event()
        strange = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def date_time_string(self, timestamp: float | None = None) -> str:
                return strange.date or super().date_time_string(timestamp)

            def do_GET(self) -> None:
                status, answer = strange.answers.get(self.path.partition("?")[0], (404, {}))
                body = strange.raw if strange.raw is not None else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) + (1_000_000 if strange.drips else 0)))
                self.end_headers()
                self.wfile.write(body)
                self.wfile.flush()
                if strange.drips:
                    strange.over.wait()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(GLANCE_S,), name="strange", daemon=True)

    def stop(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def strange() -> Iterator[Strange]:
    """Return a server that answers as told, well at first."""
    server = Strange()
    server.thread.start()
    yield server
    server.stop()


def test_a_clock_that_is_an_hour_off_is_warned_of(strange: Strange, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no fault of the bridge's: exit code 0, and what to do."""
    strange.date = "Thu, 01 Jan 1970 00:00:00 GMT"
    assert main(["check", "--bridge", strange.url]) == 0
    out = capsys.readouterr().out
    assert "all is well" in out and "warning: clocks: the clock of the bridge is" in out and "s behind" in out
    assert main(["check", "--bridge", strange.url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert ([each["code"] for each in told["warnings"]], told["problems"]) == (["clock"], [])
    for date in (None, "yesterday", "Thu, 99 Jan 1970 01:01:40 GMT", "Thu, 01 Jan 9999999 01:01:40 GMT"):
        strange.date = date
        assert main(["check", "--bridge", strange.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["warnings"] == []
