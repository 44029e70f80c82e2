"""The client commands against a real `queuebell serve`."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from bridge.queues.embedded.memory import MemoryStore
from queuebell.command.main import main
from tests.support.command import COMMAND, Serving, environment, perform, serving


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One bridge for this file; each test has a queue of its own."""
    with serving(tmp_path_factory.mktemp("data")) as started:
        yield started


def test_put_reads_arguments_files_and_lines(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """Arguments and files are a message each; standard input is one a line, the last without its newline too."""
    file = tmp_path / "body"
    file.write_bytes(b"two\nlines \xff")
    bridge.client("queue", "put", "put/q", "wörd", "--file", str(file))
    assert bridge.client("queue", "put", "put/q", stdin=b"a\r\nb\n\nc") == "put/q: put 4\n"
    lines = [json.loads(line) for line in bridge.client("queue", "peek", "put/q", "--json").splitlines()]
    assert [line.get("body") for line in lines] == ["wörd", None, "a", "b", "", "c"]
    assert lines[1]["body_base64"]


def test_put_of_many_lines_goes_in_batches(bridge: Serving) -> None:
    """More lines than a batch all arrive, in order."""
    text = "".join(f"{n}\n" for n in range(500))
    assert json.loads(bridge.client("queue", "put", "many/q", "--json", stdin=text.encode())) == {
        "queue": "many/q",
        "put": 500,
    }
    assert bridge.client("queue", "get", "many/q", "--max", "1000") == text


def test_lines_are_put_as_they_come(bridge: Serving) -> None:
    """A pipe that stays open does not hold back what it has brought."""
    process = subprocess.Popen(
        [*COMMAND, "queue", "put", "pipe/q", "--store", bridge.url], stdin=subprocess.PIPE, env=environment()
    )
    process.stdin.write(b"early\n")
    process.stdin.flush()
    while bridge.client("queue", "depth", "pipe/q", code=None) != "pipe/q: 1 visible, 0 invisible\n":
        assert process.poll() is None
    process.stdin.close()
    assert process.wait(200) == 0


def test_get_deletes_what_it_wrote_unless_told_to_keep_it(bridge: Serving) -> None:
    """Without --keep the message is gone; with it, it comes back when its lease ends."""
    bridge.client("queue", "put", "get/q", "one", "two", "three")
    assert bridge.client("queue", "get", "get/q", "--max", "2") == "one\ntwo\n"
    assert bridge.client("queue", "get", "get/q", "--keep", "--visibility-s", "60") == "three\n"
    assert json.loads(bridge.client("queue", "depth", "get/q", "--json")) == {
        "queue": "get/q",
        "exists": True,
        "visible": 0,
        "invisible": 1,
        "oldest_ms": None,
    }
    assert bridge.client("queue", "get", "get/q") == ""


WILD = "\x1b]0;owned\x07 \x1b[2J \x9b31m \u202egpj.exe \U000e0001 \r\x7f"


def on_a_terminal(bridge: Serving, *words: str) -> bytes:
    """Run a client command whose output is a terminal, and return what was written to it."""
    ours, theirs = os.openpty()
    try:
        subprocess.run(
            [*COMMAND, *words, "--store", bridge.url], stdout=theirs, env=environment(), check=True, timeout=200
        )
        return os.read(ours, 65_536)
    finally:
        os.close(ours)
        os.close(theirs)


def test_no_body_drives_a_terminal(bridge: Serving) -> None:
    """Whatever a stranger has put is shown in printable characters, bytes in a pipe stay as they are."""
    bridge.client("queue", "put", "wild/q", stdin=f"é\t{WILD}".encode() + b"\xff")
    bridge.client("queue", "put", "wild/q", stdin=WILD.encode())
    shown = on_a_terminal(bridge, "queue", "peek", "wild/q")
    # The terminal itself makes a carriage return and a line feed of each line feed.
    text = shown.decode().replace("\r\n", "\n")
    assert text.startswith("é\t\\x1b]0;owned\\x07 ")
    assert "\\xff" in text
    assert text.replace("\n", "").replace("\t", "").isprintable()
    documents = [on_a_terminal(bridge, "queue", "peek", "wild/q", "--json")]
    documents.append(on_a_terminal(bridge, "queue", "export", "wild/q"))
    for written in documents:
        lines = written.decode().replace("\r\n", "\n").splitlines()
        assert all(line.isprintable() for line in lines)
        assert json.loads(lines[1])["body"] == WILD
    piped = subprocess.run(
        [*COMMAND, "queue", "peek", "wild/q", "--store", bridge.url], capture_output=True, env=environment(), check=True
    )
    assert piped.stdout == f"é\t{WILD}".encode() + b"\xff\n" + WILD.encode() + b"\n"


def test_a_reader_that_leaves_loses_nothing_unread(bridge: Serving) -> None:
    """When the pipe breaks before the first write is flushed, the messages stay in the queue."""
    bridge.client("queue", "put", "broken/q", "x" * 60_000, "y" * 60_000, "z" * 60_000)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(
            [*COMMAND, "queue", "get", "broken/q", "--max", "3", "--store", bridge.url],
            stdout=out,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=500,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b""
    assert bridge.client("queue", "depth", "broken/q") == "broken/q: 0 visible, 3 invisible\n"


def test_headers_go_in_and_come_out(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """Of each message of a put, shown in JSON, and through an export into another queue; a file without has none."""
    header = ("--header", "Trace=00-a=b", "--header", "word=grün \u202e")
    bridge.client("queue", "put", "headers/q", "one", "two", *header)
    bridge.client("queue", "put", "headers/q", *header, stdin=b"three\n")
    bridge.client("queue", "put", "headers/q", "four", "--id", "key", *header)
    wanted = {"trace": "00-a=b", "word": "grün \u202e"}
    lines = [json.loads(line) for line in bridge.client("queue", "peek", "headers/q", "--json").splitlines()]
    assert [(line["body"], line["headers"]) for line in lines] == [(n, wanted) for n in ("one", "two", "three", "four")]
    assert bridge.client("queue", "peek", "headers/q", "--max", "1") == "one\n"
    file = tmp_path / "exported"
    bridge.client("queue", "export", "headers/q", "--delete", "--file", str(file))
    file.write_text(file.read_text("utf-8") + '{"body": "old"}\n', "utf-8")
    for _ in range(2):
        bridge.client("queue", "import", "headers/again", "--once", "--file", str(file))
    again = [
        json.loads(line)
        for line in bridge.client("queue", "get", "headers/again", "--max", "9", "--json").split("\n")[:5]
    ]
    assert [line.get("headers") for line in again] == [wanted] * 4 + [None]


@pytest.mark.parametrize("header", ["noequals", "=x", "a b=x", "a=\n", "nats-x=y", "a=" + "x" * 8192])
def test_headers_that_are_none_are_refused(bridge: Serving, header: str) -> None:
    """By the command and in words, and nothing is put; an import names the line."""
    bridge.client("queue", "put", "refused/q", "x", "--header", header, code=2)
    bridge.client("queue", "put", "refused/q", "x", "--header", "a=1", "--header", "a=2", code=2)
    name, _, value = header.partition("=")
    line = json.dumps({"body": "x", "headers": {name: value}})
    if name != "noequals":
        bridge.client("queue", "import", "refused/q", stdin=line.encode(), code=2)
    bridge.client("queue", "peek", "refused/q", code=1)


def test_export_gives_back_and_import_puts_again(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """An export leaves the queue as it was; its lines make the same messages elsewhere, text or not."""
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(range(256)))
    bridge.client("queue", "put", "export/q", "text", "--file", str(raw))
    file = tmp_path / "lines"
    bridge.client("queue", "export", "export/q", "--file", str(file))
    assert bridge.client("queue", "depth", "export/q") == "export/q: 2 visible, 0 invisible\n"
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
    """A line that is no message stops the import, and its number is told."""
    lines = b'{"body": "fine"}\n' + line + b"\n"
    done = perform("queue", "import", "wrong/q", "--store", bridge.url, stdin=lines, code=2)
    assert b"line 2" in done.stderr


def test_expired_lines_are_left_out_of_an_import(bridge: Serving) -> None:
    """A message that expired since its export is not brought back to life."""
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    lines = [
        {"body": "old", "expires_at": "2020-01-01T00:00:00Z"},
        {"body": "new", "expires_at": later.isoformat()},
    ]
    bridge.client("queue", "import", "expired/q", stdin="\n".join(map(json.dumps, lines)).encode())
    assert bridge.client("queue", "get", "expired/q", "--max", "9") == "new\n"


def test_queues_are_made_listed_cleared_and_deleted(bridge: Serving) -> None:
    """Each management action says what it did."""
    assert bridge.client("queue", "create", "manage/q", "--metadata", "team=x") == "manage/q: created\n"
    assert bridge.client("queue", "create", "manage/q") == "manage/q: stands already\n"
    bridge.client("queue", "put", "manage/q", "x")
    assert bridge.client("queue", "clear", "manage/q") == "manage/q: cleared\n"
    assert bridge.client("queue", "depth", "manage/q") == "manage/q: 0 visible, 0 invisible\n"
    assert bridge.client("queue", "list", "--prefix", "manage/") == "manage/q\n"
    assert bridge.client("queue", "delete", "manage/q") == "manage/q: deleted\n"
    assert bridge.client("queue", "depth", "manage/q", code=1) == "manage/q: does not exist\n"
    assert bridge.client("queue", "get", "manage/q", code=1) == ""


def test_a_body_that_is_too_large_is_refused(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """The limit is told, and nothing is put."""
    file = tmp_path / "large"
    file.write_bytes(b"x" * 65_537)
    bridge.client("queue", "put", "large/q", "--file", str(file), code=2)
    bridge.client("queue", "depth", "large/q", code=1)


def test_delayed_and_expiring_messages(bridge: Serving) -> None:
    """--delay-ms hides a message; it counts as invisible."""
    bridge.client("queue", "put", "delay/q", "later", "--delay-ms", "600000", "--ttl-s", "3600")
    assert bridge.client("queue", "depth", "delay/q") == "delay/q: 0 visible, 1 invisible\n"


def test_a_put_into_the_named_bridge_itself_is_one_trigger(bridge: Serving) -> None:
    """For a store elsewhere --bridge names who is to be told; its own service tells it of each put."""
    bridge.client("queue", "put", "told/q", "x", "--bridge", bridge.url + "/")
    status = json.loads(bridge.client("status", "told/q", "--json"))
    assert status["queues"][0]["triggers"] == 1


def test_publish_marks_a_queue(bridge: Serving) -> None:
    """A trigger alone makes no queue, and is seen in the state."""
    assert bridge.client("publish", "pub/q", "--size", "3") == "published pub/q: 3\n"
    assert json.loads(bridge.client("publish", "pub/q", "--id", "mine", "--json"))["id"] == "mine"
    (queue,) = json.loads(bridge.client("status", "pub/q", "--json"))["queues"]
    assert (queue["triggers"], queue["exists"], queue["depth"]) == (2, None, None)


def test_a_queue_is_paused_and_resumed(bridge: Serving) -> None:
    """Paused it gives nothing out and says so in its status; resumed it gives out what came meanwhile."""
    bridge.client("queue", "create", "pause/q")
    assert bridge.client("queue", "pause", "pause/q") == "pause/q: paused\n"
    bridge.client("queue", "put", "pause/q", "x")
    assert bridge.client("queue", "get", "pause/q") == ""
    assert bridge.client("queue", "depth", "pause/q") == "pause/q: 0 visible, 1 invisible\n"
    assert bridge.client("status", "pause/q").splitlines()[-1].split()[:7] == [
        "pause/q",
        "0",
        "1",
        "0",
        "0",
        "now",
        "paused",
    ]
    assert json.loads(bridge.client("status", "pause/q", "--json"))["queues"][0]["paused"] is True
    resumed = json.loads(bridge.client("queue", "resume", "pause/q", "--json"))
    assert resumed == {"queue": "pause/q", "paused": False}
    assert bridge.client("queue", "get", "pause/q") == "x\n"
    bridge.client("queue", "pause", "pause/missing", code=1)


def test_status_is_a_table_for_people(bridge: Serving) -> None:
    """Bridge, listeners and queues, with the counts that matter."""
    bridge.client("queue", "put", "shown/q", "x")
    text = bridge.client("status", "shown/q")
    assert f"bridge at {bridge.url}: ready" in text
    assert "no listeners" in text
    assert text.splitlines()[-1].split()[:7] == ["shown/q", "1", "0", "0", "0", "now", "dirty"]
    assert text.splitlines()[-1].split()[-3] == "s", "how long the oldest has waited"


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
        assert b"there is no queue typo/order, and nothing was put. Did you mean typo/orders?" in done.stderr
    assert bridge.client("queue", "list", "--prefix", "typo/") == "typo/orders\n"
    assert bridge.client("queue", "put", "typo/orders", "x", "--existing") == "typo/orders: put 1\n"
    assert bridge.client("queue", "put", "typo/orders", "x", "--existing", "--id", "7") == "typo/orders: put 1\n"
    perform("queue", "put", "typo/many:2", "x", "--existing", "--store", bridge.url, code=1)
    bridge.client("queue", "create", "typo/many:2")
    assert bridge.client("queue", "put", "typo/many:2", "x", "--existing", "--key", "k") == "typo/many:2: put 1\n"


def test_depth_says_how_long_the_oldest_has_waited(bridge: Serving) -> None:
    """In JSON always, of partitions the longest; in words where it is asked for."""
    bridge.client("queue", "put", "aged/many:3", "a", "b", "c")
    bridge.client("queue", "create", "aged/none")
    assert json.loads(bridge.client("queue", "depth", "aged/many:3", "--json"))["oldest_ms"] >= 0
    assert "; the oldest has waited 0." in bridge.client("queue", "depth", "aged/many:3", "--oldest")
    assert bridge.client("queue", "depth", "aged/none", "--oldest") == "aged/none: 0 visible, 0 invisible\n"


def test_a_queue_that_is_missing_is_named(bridge: Serving) -> None:
    """The service repeats nothing of the input; the command knows what it was given."""
    done = perform("queue", "peek", "missing/q", "--store", bridge.url, code=1)
    assert b"missing/q" in done.stderr


def test_the_help_says_when_a_put_is_published() -> None:
    """A put to a store elsewhere is published only where a bridge is named."""
    assert b"default: publish nothing" in b" ".join(perform("queue", "put", "--help").stdout.split())
    assert b"publish" not in perform("queue", "depth", "--help").stdout


def test_a_put_elsewhere_that_nobody_is_told_of_gives_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, and only where no bridge is named and the store is no queue service."""
    monkeypatch.setattr("bridge.queues.open_store", lambda url: MemoryStore("hint"))
    assert main(["queue", "put", "hint/q", "x", "--store", "redis://nowhere"]) == 0
    out, err = capsys.readouterr()
    assert out == "hint/q: put 1\n"
    assert "--bridge" in err and "queuebell publish" in err
    assert main(["queue", "put", "hint/q", "x", "--store", "http://127.0.0.1:9"]) == 0
    assert main(["queue", "create", "hint/q", "--store", "redis://nowhere"]) == 0
    assert capsys.readouterr().err == ""


def test_a_queue_elsewhere_that_nobody_looked_at_is_not_known(bridge: Serving) -> None:
    """Neither its messages nor its receives are said to be none; those of an own queue are counted from zero."""
    bridge.client("publish", "afar/q")
    bridge.client("queue", "put", "near/q", "x")
    text = bridge.client("status", "afar/q", "near/q")
    rows = [line.split() for line in text.splitlines()]
    shown = {row[0]: (row[1:6], row[-2:]) for row in rows if row and row[0] in {"afar/q", "near/q"}}
    assert shown == {
        "afar/q": (["?", "?", "?", "?", "not"], ["?", "?"]),
        "near/q": (["1", "0", "0", "0", "now"], ["0", "0"]),
    }
    assert "afar/q: what is leased is not known: no listener has counted it yet" in text
    assert "afar/q: what was buried is not known: no listener that buries has counted its poison queue yet" in text


def test_poison_queues_are_named(bridge: Serving) -> None:
    """Beside their queue, with what lies in them and what to ask next; one that only announced says so."""
    bridge.client("queue", "put", "grave/q", "x")
    assert "-poison" not in bridge.client("status", "grave/q")
    bridge.client("queue", "put", "grave/q-poison", "y", "z")
    bridge.client("publish", "afar/dead-poison")
    told = bridge.client("status", "grave/q", "afar/dead", "afar/dead-poison")
    assert "grave/q-poison: 2 messages were buried; `queuebell queue replay --dry-run grave/q-poison` says why" in told
    assert "nothing is received" not in bridge.client("status", "grave/q-poison")
    assert "  2 messages were buried\n" in bridge.client("explain", "grave/q-poison")
    assert (
        "afar/dead-poison: messages were buried in another store, where their number is not known; "
        "`queuebell queue replay --dry-run afar/dead-poison --store URL` says why"
    ) in told
    rows = told.split("EMPTY")[1].splitlines()[1:4]
    assert [line.split()[0] for line in rows] == ["grave/q", "afar/dead-poison", "grave/q-poison"]
    assert rows[0].split()[1:5] == ["1", "0", "0", "2"]


def test_a_delete_of_nothing_says_so(bridge: Serving) -> None:
    """Exit code 1, as for a depth: a slip of the pen is not taken for done."""
    said = bridge.client("queue", "delete", "slip/q", code=1)
    assert said.startswith("slip/q: does not exist") and "queuebell queue forget slip/q" in said
    assert bridge.client("queue", "delete", "slip/many:2", code=1) == "slip/many:2: does not exist\n"
    told = json.loads(bridge.client("queue", "delete", "slip/q", "--json", code=1))
    assert told == {"queue": "slip/q", "deleted": False, "exists": False}


def named(bridge: Serving, queue: str) -> bool:
    """Say whether `check` names a queue."""
    done = perform("check", "--bridge", bridge.url, "--json", code=None)
    return queue in [problem["subject"] for problem in json.loads(done.stdout)["problems"]]


def test_check_forgets_a_queue_that_was_a_mistake(bridge: Serving) -> None:
    """Of one elsewhere by `queue forget`, of an own one by its delete."""
    bridge.client("publish", "mistake/q")
    assert named(bridge, "mistake/q")
    done = perform("queue", "forget", "mistake/q", "--bridge", bridge.url)
    assert done.stdout == b"mistake/q: forgotten\n"
    assert not named(bridge, "mistake/q")
    done = perform("queue", "forget", "mistake/q", "--bridge", bridge.url, code=1)
    assert b"mistake/q: this bridge never heard of that queue" in done.stderr
    bridge.client("queue", "put", "mistake/own", "x")
    done = perform("queue", "forget", "mistake/own", "--bridge", bridge.url, code=1)
    assert b"it stands in the queue service" in done.stderr and named(bridge, "mistake/own")
    bridge.client("publish", "mistake/own")
    bridge.client("queue", "delete", "mistake/own")
    assert not named(bridge, "mistake/own")


@pytest.mark.parametrize("command", [("status",), ("explain",), ("queue", "forget")])
def test_commands_of_one_queue_name_a_partition(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A partitioned queue's own name is never put to, so there is nothing to show of it."""
    assert main([*command, "billing/part:8"]) == 2
    assert "name a partition, as in billing/part-p0" in capsys.readouterr().err
