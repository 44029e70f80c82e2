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
import msgspec
import pytest

from queuebell.bridge.core.settings import Periods, Tuning
from queuebell.command import check as command
from queuebell.command.main import main
from tests.support.brokers import NatsServer
from tests.support.command import perform, serving
from tests.support.postgres import running
from tests.support.processes import GLANCE_S

NAMED = {"/v1/listeners": (200, {"listeners": [{"queues": [{"queue": "a/b"}]}]})}


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
    assert "KEDA: streams need no counts of own queues; a queue in another store is counted 120 times an hour" in out
    assert "KEDA" not in check('data = "{data}"\n')[1]


def test_tables_of_workers_and_scalers_are_read_as_their_commands_read_them(
    check: Callable[..., tuple[int, str, str]],
) -> None:
    listener = "[listener]\npool = 4\npool_weight = ['a/b=2']\nretry_transient = ['first=5']\n"
    scaler = "[[scale]]\nstore = 'http://127.0.0.1:9'\nqueue = 'a/b'\ncommand = 'worker --all'\n"
    assert check(f'data = "{{data}}"\n{listener}{scaler}')[0] == 0


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
        ("[listener]\nconcurency = 4\n", "unknown key 'concurency'"),
        ("listener = 4\n", "listener is a table"),
        ("[listener]\npool_weight = ['a/b=2']\n", "pool_weight: needs pool"),
        ("[listener]\nretry_first = 9\nretry_ceiling = 8\n", "retry_first"),
        ("[[scale]]\nstore = 'http://127.0.0.1:9'\n", "queue is missing"),
        (
            "[[scale]]\nstore = 'http://127.0.0.1:9'\nqueue = 'a'\ncommand = 'w'\n",
            "[[scale]] 1: queue: a queue reference",
        ),
        ("[[scale]]\nstore = 'http://127.0.0.1:9'\nqueue = 'a/b'\ncommand = 'w'\nmax = 0\n", "[[scale]] 1: max"),
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
        bridge.client("queue", "put", "billing/later", "x", "--delay", "3600")
        assert "all is well" in bridge.client("check"), "what is due in an hour does not wait"
        bridge.client("publish", "elsewhere/orders")
        bridge.client("queue", "put", "billing/orders", "x")
        out = bridge.client("check", code=1)
        assert "elsewhere/orders: no worker is connected; announced work is waiting for one" in out
        assert "billing/orders: no worker is connected; 1 message is waiting for one" in out
        problems = json.loads(bridge.client("check", "--json", code=1))["problems"]
        assert [problem["code"] for problem in problems] == ["unattended", "unattended"]
        assert "elsewhere/orders: no worker is connected" in bridge.client("status")
        assert "no worker is connected; 1 message is waiting for one" in bridge.client("explain", "billing/orders")
        bridge.client("queue", "clear", "billing/orders")
        assert "billing/orders" not in bridge.client("check", code=1)


def test_the_bridge_of_the_configuration_file_is_asked(tmp_path: pathlib.Path) -> None:
    """At the address where it listens, if neither the file nor the command names another."""
    with serving(tmp_path / "data") as bridge:
        file = tmp_path / "bridge.toml"
        file.write_text(f'listen = "0.0.0.0:{bridge.url.rpartition(":")[2]}"\ninsecure_public = true\n')
        shown = perform("check", "--config", str(file)).stdout.decode()
        assert f"bridge at {bridge.url}: all is well" in shown


def hello(store: str) -> str:
    """Return the hello of a worker that takes ``billing/orders`` from this store."""
    queue = {"queue": "billing/orders", "capacity": 1, "store": store}
    return json.dumps({"type": "hello", "instance": store * 8, "listener": f"w-{store}", "queues": [queue]})


async def test_a_worker_that_the_bridge_rejects_is_named(tmp_path: pathlib.Path) -> None:
    """Two workers name two stores for one queue: check, status, explain, the metrics and the page's list say so."""
    with serving(tmp_path / "data") as bridge:
        async with aiohttp.ClientSession(bridge.url) as client:
            sessions = [await client.ws_connect("/v1/sessions", protocols=("queuebell.v2",)) for _ in range(2)]
            for session, store, told in zip(sessions, ("aa11", "bb22"), ("welcome", "error"), strict=True):
                assert (await session.receive_json())["type"] == "ready"
                await session.send_str(hello(store))
                assert (await session.receive_json())["type"] == told
            async with client.get("/metrics") as answer:
                assert 'queuebell_queue_rejected{queue="billing/orders"} 1.0' in await answer.text()
            async with client.get("/v1/watch") as answer:
                while not (line := await answer.content.readline()).startswith(b"data: "):
                    pass
            (row,) = json.loads(line.removeprefix(b"data: "))["rows"]
            why = "another worker of billing/orders uses a different store"
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
        assert code == 0 and f"warning: https://id.example/: no keys from {where}: " in out


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
        assert "store: NOT REACHED after " in out and "its messages are safe" in out
        assert "secret" not in out and "nats-3" not in out
        code, out, _ = await asyncio.to_thread(check, f'nats = ["{url}"]', "--live", "--json")
        assert code == 0
        (row,) = json.loads(out)["reached"]
        assert (row["name"], row["ok"]) == ("nats", True) and row["ms"] >= 0
    code, out, _ = await asyncio.to_thread(check, "", "--live")
    assert code == 0 and "no broker, database or store is configured" in out


async def test_a_broker_that_says_nothing_is_given_up(
    check: Callable[..., tuple[int, str, str]], nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that takes connections and never speaks."""
    monkeypatch.setattr(command, "WITHIN_S", 0.2)
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
    assert "all is well" in out and "warning: clocks: the bridge's clock is" in out and "s behind" in out
    assert main(["check", "--bridge", strange.url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert ([each["code"] for each in told["warnings"]], told["problems"]) == (["clock"], [])
    for date in (None, "yesterday", "Thu, 99 Jan 1970 01:01:40 GMT", "Thu, 01 Jan 9999999 01:01:40 GMT"):
        strange.date = date
        assert main(["check", "--bridge", strange.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_status_ends_with_1_where_the_bridge_is_not_ready(strange: Strange, capsys: pytest.CaptureFixture[str]) -> None:
    for ready, detail, code in ((True, "ok up", 0), (False, "broken down", 1)):
        checks = {"nats": {"ok": ready, "detail": detail.split()[1]}}
        strange.answers["/readyz"] = (200 if ready else 503, {"ready": ready, "checks": checks})
        assert main(["status", "--bridge", strange.url]) == code
        assert f"  nats: {detail}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "answers",
    [
        {"/v1/listeners": (200, [1, 2])},
        {"/v1/listeners": (200, {"listeners": [5]})},
        {"/v1/listeners": (200, {"listeners": [{"queues": [{}]}]})},
        {"/v1/listeners": (200, {"listeners": [{"queues": [{"queue": [1]}]}]})},
        {"/v1/listeners": (200, {"listeners": [{"queues": [{"queue": 5}]}]})},
        {"/readyz": (200, {"ready": True, "checks": [1]})},
        {"/readyz": (200, {"ready": True, "checks": {"x": 5}})},
        {"/readyz": (200, None)},
        {"/v1/findings": (200, {"sessions": [5]})},
        {"/v1/findings": (200, {"sessions": 5, "unattended": 7})},
        {"/v1/queues": (200, [1])},
        {**NAMED, "/v1/queues/a/b": (200, {"queue": "a/b", "wake_sources": [1, 2]})},
    ],
    ids=lambda answers: json.dumps(answers)[:60],
)
def test_what_answers_strangely_is_no_bridge(
    strange: Strange, capsys: pytest.CaptureFixture[str], answers: dict[str, Any]
) -> None:
    """Exit code 69 and one line, whatever is malformed."""
    strange.answers.update(answers)
    assert main(["check", "--bridge", strange.url]) == 69
    said = capsys.readouterr()
    assert "is not a bridge" in said.err and len(said.err.strip().splitlines()) == 1


def test_an_answer_that_is_nested_without_end_is_no_bridge(
    strange: Strange, capsys: pytest.CaptureFixture[str]
) -> None:
    strange.raw = b"[" * 200_000
    assert main(["check", "--bridge", strange.url]) == 69
    assert "is not a bridge" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/v1/findings", "/v1/listeners", "/v1/queues", "/v1/queues/a/b"])
def test_what_the_bridge_did_not_tell_is_not_well(
    strange: Strange, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    """An error instead of an answer is a problem, with its path and status; exit code 1."""
    strange.answers.update(NAMED)
    if path == "/v1/listeners":
        del strange.answers[path]
    strange.answers.setdefault("/v1/queues/a/b", (200, {"queue": "a/b"}))
    strange.answers[path] = (500, None)
    assert main(["check", "--bridge", strange.url]) == 1
    said = capsys.readouterr().out
    assert "something is wrong" in said and "it answered 500" in said and path in said


def test_rough_counts_are_said_with_both_prices(strange: Strange, capsys: pytest.CaptureFixture[str]) -> None:
    """What a scaler's store cannot say costs receives, or trust: printed for people and for programs (Z7)."""
    told = {"counts": "rough"}
    row = {"listener": "scaler x", "kind": "scaler", "queues": [{"queue": "a/b", "processes": told}]}
    numbers = [{"match": match, **msgspec.to_builtins(each)} for match, each in Tuning(Periods()).each()]
    strange.answers["/v1/listeners"] = (200, {"listeners": [row]})
    strange.answers["/v1/queues/a/b"] = (200, {"queue": "a/b"})
    strange.answers["/v1/findings"] = (200, {"numbers": numbers})
    assert main(["check", "--bridge", strange.url]) == 0
    said = capsys.readouterr().out
    assert "  a/b: scaler x: the store's counts are rough" in said
    assert "60 counts and as many receives an hour" in said and "with trust_count 60 counts alone" in said
    assert main(["check", "--json", "--bridge", strange.url]) == 0
    (rough,) = json.loads(capsys.readouterr().out)["bridges"][0]["rough_counts"]
    assert (rough["queue"], rough["counts"], rough["trusted"]) == ("a/b", 60.0, False)


def test_a_queue_that_is_gone_meanwhile_is_no_problem(strange: Strange, capsys: pytest.CaptureFixture[str]) -> None:
    strange.answers.update(NAMED)
    assert main(["check", "--bridge", strange.url]) == 0
    assert "all is well" in capsys.readouterr().out


def test_answers_that_never_end_have_one_deadline(
    strange: Strange, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All questions together end within it, and the message says so."""
    monkeypatch.setattr(command, "DEADLINE_S", 0.2)
    strange.drips = True
    assert main(["check", "--bridge", strange.url]) == 69
    assert "not complete after 0.2 s" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_password_in_the_address_is_never_shown(
    strange: Strange, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    """Nobody asks for one, so that it is refused, however it is written."""
    assert main(["check", "--bridge", strange.url.replace("//", "//u:PASSWORD@"), *more]) == 78
    assert main(["check", "--bridge", "http://u:PASS@WORD@127.0.0.1:x", *more]) == 78
    said = capsys.readouterr()
    assert "127.0.0.1" in said.err
    assert "PASS" not in said.out + said.err and "WORD" not in said.out + said.err


def test_the_numbers_of_the_bridge_are_told_as_its_own(strange: Strange, capsys: pytest.CaptureFixture[str]) -> None:
    """Where they differ from the configuration at hand; where the bridge does not tell, that is said."""
    assert main(["check", "--bridge", strange.url]) == 0
    assert "not the bridge's" in capsys.readouterr().out
    numbers = {
        "match": "*", "start_ack_s": 2.0, "store_call_s": 10.0, "sweep_s": 60.0, "slack_s": 30.0, "spread_s": 10.0,
        "wake": "enough",
    }  # fmt: skip
    strange.answers["/v1/findings"] = (200, {"numbers": [numbers]})
    assert main(["check", "--bridge", strange.url]) == 0
    assert "its settings of the wake protocol are the same" in capsys.readouterr().out
    strange.answers["/v1/findings"] = (200, {"numbers": [{**numbers, "sweep_s": 10.0}]})
    assert main(["check", "--bridge", strange.url]) == 0
    said = capsys.readouterr().out
    assert "its settings differ" in said and said.index("116 s at most") < said.index("61 s at most")


def test_status_tells_workers_of_one_name_apart_and_shows_trouble(
    strange: Strange, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the beginning of their instance; of other queues' trouble nothing, and no label drives the terminal."""
    queues = [{"queue": "a/b"}]
    twins = [{"listener": "twin", "instance": end * 32, "channel": "websocket", "queues": queues} for end in "ef"]
    trouble = [
        {"listener": "tw\x1bin", "instance": "e" * 32, "queue": "a/b", "state": "failing", "detail": "fails"},
        {"listener": "twin", "instance": "f" * 32, "queue": None, "state": "silent", "detail": "is silent"},
        {"listener": "twin", "instance": "f" * 32, "queue": "a/c", "state": "stuck", "detail": "hangs"},
    ]
    counts = {"count": 1, "first_ms": 1, "last_ms": 1}
    refused = [
        {"queue": queue, "listener": "old", "code": "c", "detail": f"refused {why}", **counts}
        for queue, why in (("a/b", "here"), ("", "unread"), ("a/c", "elsewhere"))
    ]
    strange.answers |= {
        "/v1/listeners": (200, {"listeners": [*twins, {"listener": "hook", "channel": "webhook", "queues": queues}]}),
        "/v1/findings": (200, {"sessions": trouble, "rejected": refused}),
    }
    assert main(["status", "a/b", "--bridge", strange.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  tw\\x1bin eeeeeeee on a/b: fails" in lines and "  twin ffffffff: is silent" in lines
    assert not any("hangs" in line or "elsewhere" in line for line in lines)
    assert {"  a/b: refused here", "  refused unread"} <= {*lines}
    rows = [line.split()[:3] for line in lines if line.startswith(("twin", "hook"))]
    assert rows == [["twin", "eeeeeeee", "websocket"], ["twin", "ffffffff", "websocket"], ["hook", "-", "webhook"]]


def test_what_failed_is_shown_by_its_class(strange: Strange, capsys: pytest.CaptureFixture[str]) -> None:
    """Most frequent first; a step that began before the history did is not named so."""
    times = [f"2026-12-01T0{hour}:00:00.000Z" for hour in range(4)]
    failed = zip(times, ("OSError", "ValueError", "OSError", "OSError"), (1, 2, 4, 1), strict=True)
    strange.answers["/v1/queues/a/b/history"] = 200, {
        "span": "1h", "step_s": 60, "now": times[3], "kept": True, "since": times[1], "rows": [],
        "failures": [{"at": at, "failure": name, "count": count} for at, name, count in failed],
        "marks": [{"at": times[2], "what": "paused", "by": "clerk"}],
    }  # fmt: skip
    assert main(["queue", "history", "a/b", "--bridge", strange.url]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"failed with OSError: 6 attempts; the first in the 5 minutes from {times[1]}, the last from {times[3]}",
        f"failed with ValueError: 2 attempts; the first in the 5 minutes from {times[1]}, the last from {times[1]}",
        f"{times[2]} paused by clerk",
    ]


def test_explain_names_where_the_dead_letters_are(strange: Strange, capsys: pytest.CaptureFixture[str]) -> None:
    """A listener may have another poison queue than the usual one."""
    facts: dict[str, object] = dict.fromkeys(("asked", "outcome", "summary"), "")
    facts |= {"paused": False, "dirty": False, "gen": 0, "unattended": None, "trigger_adds": True, "sessions": []}
    strange.answers |= {
        "/v1/queues/a/b/explain": (200, {"queue": "a/b", **facts}),
        "/v1/queues/a/b": (200, {"queue": "a/b", "buried": 2, "buried_in": "a/graves"}),
    }
    assert main(["explain", "a/b", "--bridge", strange.url]) == 0
    assert "see why: queuebell queue replay --dry-run a/graves --store URL\n" in capsys.readouterr().out


def test_two_bridges_are_judged_together(strange: Strange, capsys: pytest.CaptureFixture[str]) -> None:
    """What neither can say alone: that they do not hear each other, and that a listener is at the other one."""
    other = Strange()
    other.thread.start()
    try:
        for number, (each, hears) in enumerate(((strange, ["0", "1"]), (other, ["1"]))):
            members = [
                {"boot": boot, "address": boot, "version": "1", "me": boot == str(number), "leaving": False}
                | {"silent_ms": 0, "queues": 0, "able": 0}
                for boot in sorted(hears, key=lambda boot: boot != str(number))
            ]
            went = {"b:8470": 9}
            cluster = {"name": "shop", "alone": False, "members": members, "went": went if each is strange else {}}
            checks = {"nats": {"ok": True, "detail": ""}}
            each.answers |= {"/v1/cluster": (200, cluster), "/readyz": (200, {"ready": True, "checks": checks})}
        lonely = {"queue": "a/b", "detail": "no worker is connected to this bridge"}
        strange.answers["/v1/findings"] = (200, {"unattended": [lonely, lonely | {"queue": "a/c"}]})
        other.answers["/v1/listeners"] = NAMED["/v1/listeners"]
        other.answers["/v1/queues/a/b"] = (200, {"queue": "a/b"})
        assert main(["check", "--json", "--bridge", f"{strange.url},{other.url}"]) == 1
        told = json.loads(capsys.readouterr().out)
    finally:
        other.stop()
    assert [(each["code"], each["subject"]) for each in told["problems"]] == [
        ("unattended", "a/c"),
        ("alone", "cluster shop"),
    ]
    assert [each["code"] for each in told["warnings"]] == ["flapping", "split"]


def test_what_all_bridges_warn_of_is_said_once(strange: Strange, capsys: pytest.CaptureFixture[str]) -> None:
    """With who says it; and where NATS is away, nobody is sent to look for grants too."""
    member = {"version": "1", "leaving": False, "silent_ms": 0, "queues": 0, "able": 0}
    members = [member | {"boot": boot, "address": boot, "me": boot == "0"} for boot in "01"]
    refused = [{"boot": "2", "address": "c:8470", "why": "it is another"}]
    cluster = {"name": "shop", "alone": True, "members": members, "refused": refused, "went": {}}
    other = Strange()
    other.thread.start()
    try:
        for each in (strange, other):
            checks = {"nats": {"ok": each is strange, "detail": ""}}
            each.answers |= {"/v1/cluster": (200, cluster), "/readyz": (200, {"ready": True, "checks": checks})}
        main(["check", "--bridge", f"{strange.url},{other.url}"])
        lines = capsys.readouterr().out.splitlines()
    finally:
        other.stop()
    warnings = [line.strip() for line in lines if "warning" in line]
    assert len(warnings) == 2
    assert warnings[0].startswith(
        f"warning of {strange.url}: cluster shop: it receives other bridges' messages but not its own"
    )
    assert warnings[1].startswith(
        f"warning of {strange.url}, {other.url}: cluster shop: the bridge c:8470 is not a member"
    )
