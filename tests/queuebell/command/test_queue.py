"""The client commands against a real `queuebell serve`."""

from __future__ import annotations

import datetime
import json
import pathlib
import re
import urllib.request
from collections.abc import Iterator

import pytest

from queuebell.bridge.contract.burial import Burial, write_burial
from queuebell.bridge.contract.calls import JSON
from queuebell.command.main import main
from tests.queuebell.command.test_key import created
from tests.support.command import Serving, perform, serving
from tests.support.postgres import PostgresServer, running
from tests.support.processes import free_port


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One bridge for this file; each test has a queue of its own."""
    with serving(tmp_path_factory.mktemp("data")) as started:
        yield started


def test_put_of_many_lines_goes_in_batches(bridge: Serving) -> None:
    text = "".join(f"{n}\n" for n in range(500))
    assert json.loads(bridge.client("queue", "put", "many/q", "-", "--json", stdin=text.encode())) == {
        "queue": "many/q",
        "put": 500,
    }
    assert bridge.client("queue", "get", bridge.url, "many/q", "--max", "1000") == text
    assert b"named twice" in perform("queue", "get", bridge.url, "many/q", "--store", bridge.url, code=2).stderr
    assert b"takes one queue" in perform("queue", "clear", "many/q", "many/r", code=2).stderr
    assert b"(given: many/q); --file names a file" in perform("queue", "export", "many/q", "f.jsonl", code=2).stderr


def test_options_stand_between_operands(bridge: Serving) -> None:
    bridge.client("queue", "put", "between/q", "--header", "kind=gift", "one", "--ttl", "60", "two")
    assert bridge.client("queue", "peek", "between/q") == "one\ntwo\n"
    wrong = perform("queue", "put", "between/q", "one", "--nosuch", code=2).stderr
    assert wrong.startswith(b"usage: queuebell queue put ")
    assert b"unrecognized arguments: --nosuch" in wrong


def test_get_deletes_what_it_wrote_unless_told_to_keep_it(bridge: Serving) -> None:
    """Without --keep the message is gone; with it, it comes back when its lease ends."""
    bridge.client("queue", "put", "get/q", "one", "two", "three")
    assert bridge.client("queue", "get", "get/q", "--max", "2") == "one\ntwo\n"
    assert bridge.client("queue", "get", "get/q", "--keep", "--visibility-timeout", "60") == "three\n"
    assert json.loads(bridge.client("queue", "depth", "get/q", "--json")) == {
        "queue": "get/q",
        "exists": True,
        "visible": 0,
        "invisible": 1,
        "oldest_ms": None,
    }
    assert bridge.client("queue", "get", "get/q") == ""


def test_export_gives_back_and_import_puts_again(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """An export leaves the queue as it was; its lines make the same messages elsewhere, text or not."""
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(range(256)))
    bridge.client("queue", "put", "export/q", "text", "--file", str(raw))
    file = tmp_path / "lines"
    bridge.client("queue", "export", "export/none", "--file", str(file), code=1)
    assert not file.exists()
    bridge.client("queue", "export", "export/q", "--file", str(file))
    assert bridge.client("queue", "depth", "export/q") == "export/q: 2 visible, 0 invisible\n"
    assert bridge.client("queue", "export", "export/q", "--file", str(file), code=2) == ""
    assert len(file.read_bytes().splitlines()) == 2, "it may hold what an export with --delete took"
    bridge.client("queue", "import", "import/q", stdin=file.read_bytes())
    again = [json.loads(line) for line in bridge.client("queue", "export", "import/q", "--delete").splitlines()]
    assert [again[0]["body"], again[1]["body_base64"]] == [
        "text",
        json.loads(file.read_bytes().splitlines()[1])["body_base64"],
    ]
    assert bridge.client("queue", "depth", "import/q") == "import/q: 0 visible, 0 invisible\n"


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b'{"body": 1}', b"{}", b'{"body": "x", "body_base64": "eA=="}', b'{"body_base64": "?"}', b"\xff"],
)
def test_import_names_the_line_that_is_wrong(bridge: Serving, line: bytes) -> None:
    lines = b'{"body": "fine"}\n' + line + b"\n"
    done = perform("queue", "import", "wrong/q", "--store", bridge.url, stdin=lines, code=2)
    assert b"line 2" in done.stderr


def test_queues_are_made_listed_cleared_and_deleted(bridge: Serving) -> None:
    assert bridge.client("queue", "create", "manage/q", "--metadata", "team=x") == "manage/q: created\n"
    assert bridge.client("queue", "create", "manage/q") == "manage/q: already exists\n"
    for new in (True, False):
        assert json.loads(bridge.client("queue", "create", "made/q", "--json"))["created"] is new
    bridge.client("queue", "put", "manage/q", "x")
    assert bridge.client("queue", "clear", "manage/q") == "manage/q: cleared\n"
    assert bridge.client("queue", "depth", "manage/q") == "manage/q: 0 visible, 0 invisible\n"
    assert bridge.client("queue", "list", "--prefix", "manage/") == "manage/q\n"
    bridge.client("queue", "put", "manage/q", "x", "y")
    assert bridge.client("queue", "delete", "manage/q") == "manage/q: deleted, with 2 messages\n"
    assert bridge.client("queue", "depth", "manage/q", code=1) == "manage/q: there is no such queue\n"
    assert bridge.client("queue", "get", "manage/q", code=1) == ""


def test_a_queue_is_paused_and_resumed(bridge: Serving) -> None:
    """Paused it gives nothing out and says so in its status; resumed it gives out what came meanwhile."""
    bridge.client("queue", "create", "pause/q")
    assert bridge.client("queue", "pause", "pause/q") == "pause/q: paused\n"
    bridge.client("queue", "put", "pause/q", "x")
    assert bridge.client("queue", "get", "pause/q") == ""
    assert bridge.client("queue", "export", "pause/q", code=1) == "", "0 messages are no backup of a queue that has one"
    assert "pause/q: it is paused, and 1 messages wait" in bridge.client("check", code=None)
    assert bridge.client("queue", "depth", "pause/q") == "pause/q: 0 visible, 1 invisible\n"
    row = bridge.client("status", "pause/q").splitlines()[-1].split()
    assert " ".join(row[:7]) == "pause/q 0 1 0 0 now paused"
    state = json.loads(bridge.client("status", "pause/q", "pause/nobody", "--json"))
    assert (state["queues"][0]["paused"], state["unknown"]) == (True, ["pause/nobody"])
    resumed = json.loads(bridge.client("queue", "resume", "pause/q", "--json"))
    assert resumed == {"queue": "pause/q", "paused": False}
    assert bridge.client("queue", "get", "pause/q") == "x\n"
    bridge.client("queue", "pause", "pause/missing", code=1)


def test_messages_are_shown_where_they_are(bridge: Serving) -> None:
    """What waits, is delayed or is leased, as bodies and as JSON; one by its id; of what is gone nothing."""
    bridge.client("queue", "put", "where/q", "first", "second", "--header", "name=value")
    bridge.client("queue", "put", "where/q", "delayed", "--delay", "90", "--id", "order-7")
    receive = urllib.request.Request(
        f"{bridge.url}/v1/queues/where/q/receive", data=b"{}", headers={"Content-Type": JSON}
    )
    with urllib.request.urlopen(receive, timeout=100) as answer:
        (leased,) = json.load(answer)["messages"]
    states = {"waiting": "second\n", "later": "delayed\n", "running": "first\n"}
    assert {state: bridge.client("queue", "peek", "where/q", "--state", state) for state in states} == states
    line = json.loads(bridge.client("queue", "peek", "where/q", "--state", "running", "--json"))
    assert (line["id"], line["state"], line["visible_in_ms"] > 0) == (leased["id"], "running", True)
    shown = bridge.client("queue", "show", "where/q", "order-7").splitlines()
    assert shown[0].startswith("later, for another ") and shown[2:] == ["", "delayed"]
    assert shown[1].endswith("; put under: order-7")
    told = bridge.client("queue", "show", "where/q", leased["id"]).splitlines()[1:]
    assert told == [f"id: {leased['id']}", "name: value", "", "first"]
    assert json.loads(bridge.client("queue", "show", "where/q", "order-7", "--json"))["key"] == "order-7"
    gone = json.loads(bridge.client("queue", "show", "where/q", "order-8", "--json", code=1))
    assert gone["error"].startswith("where/q has no message order-8")
    bridge.client("queue", "show", "where/q", " ", code=2)
    bridge.client("queue", "peek", "where/q", "--max", "33", code=2)
    assert bridge.client("queue", "peek", "where/q", "--state", "later", "--max", "33") == "delayed\n"
    line = bridge.client("queue", "peek", "where/q", "--state", "later", "--json")
    bridge.client("queue", "import", "copied/q", stdin=line.encode())
    copied = json.loads(bridge.client("queue", "peek", "copied/q", "--state", "later", "--json"))
    assert copied["body"] == "delayed" and copied["visible_in_ms"] <= json.loads(line)["visible_in_ms"]
    gone = json.loads(
        bridge.client("queue", "discard", "where/q", "order-7", "order-8", leased["id"], "--json", code=1)
    )
    stays, never = (
        "is at a worker, which decides about it: it stays",
        "is not there: it is gone, or there never was one",
    )
    assert gone == {"queue": "where/q", "discarded": 1, "left": {"order-8": never, leased["id"]: stays}}
    assert bridge.client("queue", "depth", "where/q") == "where/q: 1 visible, 1 invisible\n"


def test_a_message_that_became_a_dead_letter_is_shown(bridge: Serving, tmp_path: pathlib.Path) -> None:
    noon = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)
    for number in range(3):
        facts = Burial("grave/x", f"{number:016x}", noon, noon, f"no price {number}", 5, key=f"order-{number}")
        body = write_burial(facts, b"body", 10_000)
        assert body is not None
        (tmp_path / "body").write_bytes(body)
        bridge.client("queue", "put", "grave/x-poison", "--file", str(tmp_path / "body"))
    bridge.client("queue", "create", "grave/x")
    for queue in ("grave/x", "grave/x-poison"):
        shown = bridge.client("queue", "show", queue, "order-1")
        assert "failed as message 0000000000000001, put under order-1\n" in shown
        assert "dead letter of grave/x after 5 attempts: no price 1\n" in shown and shown.endswith("body\n")
        assert shown.startswith("in grave/x-poison: waiting")
        bridge.client("queue", "show", queue, "order-3", code=1)
        (why,) = json.loads(bridge.client("queue", "discard", queue, "order-1", "--json", code=1))["left"].values()
    lines = bridge.client("queue", "peek", "grave/x-poison", "--json")
    bridge.client("queue", "import", "grave/y-poison", stdin=lines.encode())
    bridge.client("queue", "import", "grave/y", stdin=lines.encode())
    assert [json.loads(line)["burial"] for line in lines.splitlines()] == [
        json.loads(line)["burial"] for line in bridge.client("queue", "peek", "grave/y-poison", "--json").splitlines()
    ]
    assert bridge.client("queue", "peek", "grave/y") == "body\n" * 3
    bridge.client("queue", "replay", "grave/x-poison", "--id", json.loads(lines.splitlines()[0])["id"])
    id_ = json.loads(bridge.client("queue", "peek", "grave/x", "--json"))["id"]
    assert "\nit was a dead letter of grave/x" in bridge.client("queue", "show", "grave/x", id_)
    *words, letter = why.partition("queuebell ")[2].split()
    bridge.client(*words, letter)
    bridge.client("queue", "show", "grave/x", "order-1", code=1)


def test_the_history_of_a_queue_is_shown(bridge: Serving) -> None:
    bridge.client("queue", "put", "past/q", "first", "second")
    bridge.client("queue", "get", "past/q")
    bridge.client("queue", "pause", "past/q")
    head, heads, row, *marks = bridge.client("queue", "history", "past/q", "--span", "7d").splitlines()
    assert head.startswith("past/q: since ") and heads.split()[:3] == ["FROM", "PUT", "DONE"]
    assert row.split()[1:8] == ["2", "0", "0", "0", "1", "0", "2"]
    assert [mark.split(" ", 1)[1] for mark in marks] == ["bridge started", "paused"]
    past = json.loads(bridge.client("queue", "history", "past/q", "--json"))
    assert sum(step["put"] for step in past["rows"] if "put" in step) == 2
    bridge.client("queue", "create", "past/new")
    assert "nothing happened in this time" in bridge.client("queue", "history", "past/new")
    bridge.client("queue", "history", "past/none", code=1)
    bridge.client("queue", "watch", "past/none", code=1)
    assert bridge.client("queue", "watch", "past/q", "--once") == ""
    bridge.client("queue", "put", "past/q", "third", "--id", "mine", "--delay", "5")
    (event,) = map(json.loads, bridge.client("queue", "watch", "past/q", "--once", "--json").splitlines())
    assert (event["n"], event["what"], event["detail"]) == (1, "put", "visible in 5 s")
    assert event["id"] in bridge.client("queue", "watch", "past/q", event["id"], "--once")
    assert bridge.client("queue", "watch", "past/q", "other", "--once") == ""
    bridge.client("queue", "history", "past/q", "--span", "2h", code=2)


def test_a_put_with_an_id_is_done_once(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """Sent again it changes nothing; peek and get show the id as the message's key; another body is refused."""
    assert bridge.client("queue", "put", "once/q", "seven", "--id", "order-7") == "once/q: put 1\n"
    again = json.loads(bridge.client("queue", "put", "once/q", "seven", "--id", "order-7", "--json"))
    assert again == {"queue": "once/q", "put": 0, "id": "order-7"}
    assert json.loads(bridge.client("queue", "peek", "once/q", "--json"))["key"] == "order-7"
    bridge.client("queue", "put", "once/q", "eight", "--id", "order-7", code=2)
    bridge.client("queue", "put", "once/q", "a", "b", "--id", "order-8", code=2)
    bridge.client("queue", "put", "once/q", "--id", "order-8", code=2)
    bridge.client("queue", "put", "once/many:2", "a", "--id", "order-8", code=2)
    bridge.client("queue", "put", "once/many:2", "a", "--id", "order-8", "--key", "ann")
    assert "put 0" in bridge.client("queue", "put", "once/many:2", "a", "--id", "order-8", "--key", "ann")
    assert "put 0" in bridge.client("queue", "put", "once/q", "seven", "--id", "order-7", "--bridge", bridge.url)


def test_a_put_may_ask_for_a_queue_that_is_there(bridge: Serving) -> None:
    """A slip of the pen makes no queue: exit code 1, what was put, and what may have been meant."""
    bridge.client("queue", "create", "typo/orders")
    for more in ([], ["--id", "order-7"], ["--bridge", bridge.url]):
        done = perform("queue", "put", "typo/order", "x", "--existing", *more, "--store", bridge.url, code=1)
        assert b"there is no queue typo/order; nothing was put. Did you mean typo/orders?" in done.stderr
    assert bridge.client("queue", "list", "--prefix", "typo/") == "typo/orders\n"
    assert bridge.client("queue", "put", "typo/orders", "x", "--existing") == "typo/orders: put 1\n"
    assert bridge.client("queue", "put", "typo/orders", "x", "--existing", "--id", "7") == "typo/orders: put 1\n"
    perform("queue", "put", "typo/many:2", "x", "--existing", "--store", bridge.url, code=1)
    bridge.client("queue", "create", "typo/many:2")
    assert bridge.client("queue", "put", "typo/many:2", "x", "--existing", "--key", "k") == "typo/many:2: put 1\n"


def test_poison_queues_are_named(bridge: Serving) -> None:
    """Beside their queue, with what lies in them and what to ask next; one that only announced says so."""
    bridge.client("queue", "put", "grave/q", "x")
    assert "-poison" not in bridge.client("status", "grave/q")
    bridge.client("queue", "put", "grave/q-poison", "y", "z")
    bridge.client("publish", "afar/dead-poison")
    told = bridge.client("status", "grave/q", "afar/dead", "afar/dead-poison")
    way = "messages are dead-lettered; see why: queuebell queue replay --dry-run grave/q-poison\n"
    assert f"grave/q-poison: 2 {way}" in told
    assert "no worker is connected" not in bridge.client("status", "grave/q-poison")
    assert f"  2 {way}" in bridge.client("explain", "grave/q-poison")
    assert f"  2 of its {way}" in bridge.client("explain", "grave/q")
    assert (
        "afar/dead-poison: messages are dead-lettered in an external store; their number is unknown; "
        "see why: queuebell queue replay --dry-run afar/dead-poison --store URL"
    ) in told
    rows = told.split("EMPTY")[1].splitlines()[1:4]
    assert [line.split()[0] for line in rows] == ["grave/q", "afar/dead-poison", "grave/q-poison"]
    assert rows[0].split()[1:5] == ["1", "0", "0", "2"]


def test_a_delete_of_nothing_says_so(bridge: Serving) -> None:
    """Exit code 1, as for a depth: a slip of the pen is not taken for done."""
    said = bridge.client("queue", "delete", "slip/q", code=1)
    assert said.startswith("slip/q: there is no such queue") and "queuebell queue forget slip/q" in said
    assert bridge.client("queue", "delete", "slip/many:2", code=1) == "slip/many:2: there is no such queue\n"
    told = json.loads(bridge.client("queue", "delete", "slip/q", "--json", code=1))
    assert told == {"queue": "slip/q", "deleted": False, "exists": False}


@pytest.mark.parametrize("command", [("status",), ("explain",), ("queue", "forget")])
def test_commands_of_one_queue_name_a_partition(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A partitioned queue's own name is never put to, so there is nothing to show of it."""
    assert main([*command, "billing/part:8"]) == 2
    assert "name a partition, such as billing/part-p0" in capsys.readouterr().err


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


def test_only_a_database_needs_tables() -> None:
    """Any other store is refused as a mistake of configuration."""
    assert b"database" in perform("queue", "init", "http://127.0.0.1:8470", code=78).stderr
    said = perform("queue", "init", "postgresql+asyncpg://me:s3cret@127.0.0.1/jobs", code=78).stderr
    assert b"without a driver's name" in said and b"s3cret" not in said


@pytest.mark.system
def test_tables_are_made_once_and_used(server: PostgresServer) -> None:
    """It says what it did; a put and a get go after it, and not before."""
    url = server.url(search_path="command")
    assert b"queuebell queue init" in perform("queue", "put", "a/b", "x", "--store", url, code=78).stderr
    assert b"tables of schema 5 created" in perform("queue", "init", url).stdout
    assert b"nothing to do" in perform("queue", "init", url).stdout
    assert json.loads(perform("queue", "init", url, "--notify", "--json").stdout) == {
        "done": ["every put notifies the channel queuebell"]
    }
    assert perform("queue", "put", url, "a/b", "hello").stderr == b""
    assert perform("queue", "get", url, "a/b").stdout == b"hello\n"
    perform("queue", "init", url, "--no-notify")
    assert b"no trigger was sent" in perform("queue", "put", "a/b", "--store", url, stdin=b"x").stderr
    assert perform("queue", "put", "a/b", "--store", url, stdin=b"").stderr == b""
    gone = perform("queue", "put", url, "a/b", "x", "--bridge", f"http://127.0.0.1:{free_port()}").stderr
    assert b"the messages are safe, but no bridge took the trigger" in gone and b"queuebell publish" in gone


def test_get_and_peek_go_through_all_partitions(bridge: Serving) -> None:
    """One after the other until there are enough; a partition that was never put to is empty."""
    bridge.client("queue", "put", "get/orders-p0", "one")
    bridge.client("queue", "put", "get/orders-p2", "two", "three")
    assert bridge.client("queue", "peek", "get/orders:3") == "one\ntwo\nthree\n"
    assert bridge.client("queue", "peek", "get/orders:3", "--max", "2") == "one\ntwo\n"
    assert bridge.client("queue", "get", "get/orders:3", "--max", "2") == "one\ntwo\n"
    assert bridge.client("queue", "get", "get/orders:3", "--max", "9") == "three\n"
    bridge.client("queue", "get", "none/orders:3", code=1)
    bridge.client("queue", "peek", "get/orders:3", "--max", "33", code=2)


def test_what_cannot_be_done_with_partitions_is_refused(bridge: Serving) -> None:
    """Export and import keep a message where it is; a key without partitions chooses nothing; near misses."""
    for words in (
        ["queue", "export", "no/orders:4"],
        ["queue", "import", "no/orders:4"],
        ["queue", "put", "no/orders", "x", "--key", "k"],
        ["queue", "put", "no/orders:4", "x", "--key", ""],
        ["queue", "put", "no/orders:04", "x"],
        ["queue", "put", "no/Orders:4", "x"],
        ["publish", "no/orders", "--key", "k"],
        ["publish", "no/orders:0"],
    ):
        bridge.client(*words, code=2)
    assert bridge.client("queue", "list", "--prefix", "no/") == ""
    done = perform("queue", "export", "no/orders:4", env={"QUEUEBELL_STORE": bridge.url}, code=2)
    assert b"no/orders-p0" in done.stderr


QUEUE = "billing/orders"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Serve with `--auth`, and return the address with a key that grants nothing of what is asked."""
    folder = tmp_path_factory.mktemp("asked")
    secret = created(folder, "elsewhere", "put=other/queue")
    with serving(folder, "--auth") as bridge:
        yield bridge.url, secret


@pytest.fixture(params=["unauthenticated", "unknown", "forbidden"])
def env(request: pytest.FixtureRequest, asked: tuple[str, str], tmp_path: pathlib.Path) -> dict[str, str]:
    """What a client's environment says of bridge, store and key."""
    url, secret = asked
    key = {"unauthenticated": "", "unknown": f"{secret[:-4]}0000", "forbidden": secret}[request.param]
    return {
        "QUEUEBELL_BRIDGE": url,
        "QUEUEBELL_STORE": url,
        "QUEUEBELL_API_KEY": key,
        "QUEUEBELL_DATA": str(tmp_path),
    }


@pytest.mark.parametrize(
    "words",
    [
        ["publish", QUEUE],
        ["publish", f"{QUEUE}:3"],
        ["status"],
        ["status", QUEUE],
        ["explain", QUEUE],
        ["check"],
        ["queue", "list"],
        ["queue", "put", QUEUE, "x"],
        ["queue", "get", QUEUE],
        ["queue", "peek", QUEUE],
        ["queue", "depth", QUEUE],
        ["queue", "pause", QUEUE],
        ["queue", "create", QUEUE],
        ["queue", "delete", QUEUE],
        ["queue", "forget", QUEUE],
        ["queue", "replay", QUEUE],
    ],
    ids=" ".join,
)
def test_a_refused_key_is_1_for_every_command(words: list[str], env: dict[str, str]) -> None:
    """The bridge is there, so it is not 69: one line of standard error says what is not granted."""
    done = perform(*words, env=env, code=1)
    said = done.stderr.decode()
    assert len(said.splitlines()) == 1 and ("key" in said or "is not granted" in said)


def test_a_put_of_lines_says_how_far_it_came(bridge: Serving) -> None:
    """The lines before the one that is refused are on the queue; a repetition would double them."""
    lines = b"".join(b"line %d\n" % number for number in range(40)) + b"x" * 70_000 + b"\n"
    env = {"QUEUEBELL_STORE": bridge.url}
    done = perform("queue", "put", "lines/q", stdin=lines, env=env, code=2)
    put = int(re.search(rb"lines/q: put (\d+), then failed or was interrupted", done.stderr)[1])  # type: ignore[index]
    assert bridge.client("queue", "depth", "lines/q") == f"lines/q: {put} visible, 0 invisible\n"
    assert put and b"; a repetition puts them again" in done.stderr
