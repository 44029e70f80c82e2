"""`BlockingStore`: a store for scripts, threads and forked processes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import pathlib
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec
import pytest

from queuebell.bridge import (
    BadInput,
    BlockingStore,
    ConfigurationError,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.producer import blocking
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.queues.base import (
    Capabilities,
    Claim,
    Extend,
    NewMessage,
    PutReceipt,
    Release,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
)
from tests.support.buses import RecordingBus
from tests.support.command import environment, serving
from tests.support.processes import PATIENCE_S

QUEUE = "billing/orders"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a bridge for all tests here."""
    with serving(tmp_path_factory.mktemp("served") / "data") as bridge:
        yield bridge.url


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Listen on a port, and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "queuebell-store"]


@pytest.mark.parametrize(
    ("given", "options", "error"),
    [
        ("ftp://x", {}, ConfigurationError),
        ("memory:x", {"bridge": "ftp://x"}, ConfigurationError),
        ("memory:x", {"timeout": 0}, BadInput),
        ("memory:x", {"timeout": float("nan")}, BadInput),
        (None, {}, TypeError),
    ],
)
def test_wrong_arguments_are_told_where_it_is_made(given: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        BlockingStore(given, **options)
    assert threads() == []


async def test_within_an_event_loop_it_is_refused() -> None:
    """The error names the asynchronous call; in another thread it works."""
    store = BlockingStore("memory:loop")
    with pytest.raises(BadInput, match=r"^BlockingStore\.put: .* `await store\.put\(\.\.\.\)`") as refused:
        store.put(QUEUE, ["x"])
    assert refused.value.code == "bad_parameter"
    await asyncio.to_thread(store.put, QUEUE, ["x"])
    with pytest.raises(BadInput, match=r"await store\.close"):
        store.close()
    await asyncio.to_thread(store.close)


class Noting:
    """A store that notes what it is asked, and has a right answer to most of it, or with ``hangs`` none."""

    capabilities = Capabilities(put_once=True)

    def __init__(self, hangs: bool = False) -> None:
        self.noted: list[tuple[Any, ...]] = []
        self.hangs = hangs
        self.done = Settled(True, pop_receipt="renewed")

    def __getattr__(self, name: str) -> Any:
        async def call(*given: Any, **more: Any) -> Any:
            self.noted.append((name, *given, more) if more else (name, *given))
            if name == "close":
                return None
            if self.hangs:
                await asyncio.Event().wait()
            if name == "settle":
                settlement: Settlement = given[1]
                return Settling(*([self.done] * len(some) for some in msgspec.structs.astuple(settlement)))
            return [PutReceipt("id", "receipt", 0)] * len(given[1]) if name == "put" else None

        return call


MESSAGE = StoredMessage("id", "receipt", b"x", 1, datetime.datetime.now(datetime.UTC), None)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[Any, ...]]] = [
    ("put", (["x"],), {}, ("put", QUEUE, [NewMessage(b"x")], {"create": True})),
    (
        "put",
        (["x"],),
        {"visible_after_ms": 1, "ttl_s": 2, "create": False},
        ("put", QUEUE, [NewMessage(b"x", 1, 2)], {"create": False}),
    ),
    ("put_once", ("key", "x"), {}, ("put_once", QUEUE, "key", "x", {"create": True})),
    ("put_once", ("key", "x"), {"create": False}, ("put_once", QUEUE, "key", "x", {"create": False})),
    ("receive", (), {}, ("receive", QUEUE, 1, 30.0)),
    ("receive", (5, 7.0), {}, ("receive", QUEUE, 5, 7.0)),
    ("delete", (MESSAGE,), {}, ("settle", QUEUE, Settlement(delete=[Claim("id", "receipt")]))),
    ("release", (MESSAGE,), {}, ("settle", QUEUE, Settlement(release=[Release("id", "receipt", 0)]))),
    ("release", (MESSAGE, 9), {}, ("settle", QUEUE, Settlement(release=[Release("id", "receipt", 9)]))),
    ("extend", (MESSAGE, 60.0), {}, ("settle", QUEUE, Settlement(extend=[Extend("id", "receipt", 60.0)]))),
    ("peek", (), {}, ("peek", QUEUE, 32)),
    ("peek", (3,), {}, ("peek", QUEUE, 3)),
    ("depth", (), {}, ("depth", QUEUE)),
    ("exists", (), {}, ("exists", QUEUE)),
    ("oldest_ms", (), {}, ("oldest_ms", QUEUE)),
]


def test_every_call_reaches_the_store_and_names_itself_where_no_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    store = Noting()
    monkeypatch.setattr(blocking, "open_store", lambda url, **options: made.append((url, options)) or store)
    with BlockingStore("noting:", some="option") as answering:
        for name, given, more, noted in CALLS:
            getattr(answering, name)(QUEUE, *given, **more)
            assert store.noted.pop() == noted
        assert answering.delete(QUEUE, MESSAGE) is answering.release(QUEUE, MESSAGE) is True
        renewed = answering.extend(QUEUE, MESSAGE, 1.0)
        assert renewed == msgspec.structs.replace(MESSAGE, pop_receipt="renewed")
        store.done = Settled(True)
        assert answering.extend(QUEUE, MESSAGE, 1.0) == MESSAGE
        store.hangs = True
    assert store.noted[-1] == ("close",)
    monkeypatch.setattr(blocking, "CLOSE_S", 0.02)
    monkeypatch.setattr(blocking, "Publisher", lambda bridge, api_key: Publisher(RecordingBus()))
    with BlockingStore("noting:", bridge="nats://h", timeout=0.01) as hanging:
        for name, given, more, _ in CALLS:
            if name != "put_once":
                with pytest.raises(
                    UnknownOutcome, match=f"^{name} {QUEUE}: no answer within 0.01 s; it may have been done"
                ):
                    getattr(hanging, name)(QUEUE, *given, **more)
        hanging.publish(QUEUE)
        store.noted.clear()
        for existing in ({}, {"create": False}):
            with pytest.raises(UnknownOutcome, match=f"^put_once {QUEUE}: "):
                hanging.put_once(QUEUE, "key", "x", **existing)
            message, *said = store.noted[-1][3:]
            assert (message, said) == (NewMessage(b"x"), [existing] if existing else [])
    assert made == [("noting:", {"some": "option"}), ("noting:", {})]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_cannot_start_its_loop_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was done, and the next call tries again."""

    def refuse(main: Coroutine[Any, Any, None]) -> None:
        main.close()
        raise OSError("too many open files")

    with BlockingStore("memory:late") as store:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "run", refuse)
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="could not start its event loop; nothing was done"):
                    store.put(QUEUE, ["x"])
        assert len(store.put(QUEUE, ["x"])) == 1


def test_what_hangs_when_it_is_closed_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A put in progress and the store each have their time; then the thread ends."""

    class Stuck(Noting):
        async def close(self) -> None:
            self.noted.append(("close",))
            await asyncio.Event().wait()

    store = Stuck(hangs=True)
    monkeypatch.setattr(blocking, "open_store", lambda url: store)
    monkeypatch.setattr(blocking, "CLOSE_S", 0.02)
    there = BlockingStore("noting:", bridge="http://127.0.0.1:1", timeout=0.01)
    with pytest.raises(UnknownOutcome):
        there.put(QUEUE, ["x"])
    there.close()
    there.close()
    assert store.noted[1:] == [("close",)] and threads() == []


def program(code: str, *arguments: str) -> str:
    """Run a program to its good end and return what it said."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", code, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


FORKED = """
import os, sys
from queuebell import BlockingStore
store = BlockingStore(sys.argv[1], bridge=sys.argv[1])
store.put("forked/orders", ["parent"])
child = os.fork()
store.put("forked/orders", ["both"])
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(store.depth("forked/orders").visible)
"""

FORKED_BUSY = """
import os, sys, threading
from queuebell import BlockingStore
store, ended = BlockingStore(sys.argv[1]), threading.Event()
store.depth("busy/orders")  # no fork survives an import that is under way, and this one makes the store's
def busy():
    while not ended.is_set():
        store.depth("busy/orders")
others = [threading.Thread(target=busy) for _ in range(4)]
for each in others:
    each.start()
for _ in range(10):
    child = os.fork()
    if not child:
        store.put("busy/orders", ["child"])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
ended.set()
for each in others:
    each.join()
print(store.depth("busy/orders").visible)
"""

FORKED_FILE = """
import os, sys
from queuebell import BlockingStore, StoreOwned
store = BlockingStore(sys.argv[1])
store.put("a/q", ["parent"])
child = os.fork()
if not child:
    try:
        store.put("a/q", ["child"])
    except StoreOwned as error:
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("code", "visible"), [(FORKED, "3"), (FORKED_BUSY, "10")])
def test_a_forked_process_goes_on_with_a_loop_of_its_own(url: str, code: str, visible: str) -> None:
    assert program(code, url).split() == [visible]


def test_a_file_stays_with_the_parent(tmp_path: pathlib.Path) -> None:
    """One process owns a data file; the child gets an error."""
    assert program(FORKED_FILE, f"sqlite:{tmp_path / 'queue.db'}").split() == ["7"]


LEFT_OPEN = """
import sys
from queuebell import BlockingStore
store = BlockingStore(sys.argv[1], bridge=sys.argv[2])
store.put("left/orders", ["x"])
print("done")
"""

LEFT_CALLING = """
import sys, threading
from queuebell import BlockingStore
store = BlockingStore(sys.argv[1], timeout=3600)
def put():
    try:
        store.put("left/orders", ["x"])
    except BaseException:
        pass
threading.Thread(target=put, daemon=True).start()
sys.stdout.write("asking\\n")
sys.stdout.flush()
sys.stdin.readline()
"""


def test_a_program_ends_although_it_closed_nothing(url: str, tmp_path: pathlib.Path) -> None:
    """Its store is closed silently, and pending triggers are published."""
    assert program(LEFT_OPEN, f"sqlite:{tmp_path / 'queue.db'}", url) == "done\n"
    with urllib.request.urlopen(f"{url}/v1/queues/left/orders", timeout=PATIENCE_S) as answer:
        assert json.load(answer)["dirty"]


def test_a_program_that_ends_tells_what_it_could_not_publish() -> None:
    """A thread that is cut off with its program would log nothing."""
    command = [sys.executable, "-c", LEFT_OPEN, "memory:left", "http://127.0.0.1:1"]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=PATIENCE_S, check=True)
    assert b"closed with 1 unsent triggers" in done.stderr


def test_a_program_ends_although_a_call_hangs(silent: socket.socket) -> None:
    command = [sys.executable, "-c", LEFT_CALLING, address(silent)]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            connection, _ = silent.accept()
            with contextlib.closing(connection):
                process.communicate(b"\n", timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0
