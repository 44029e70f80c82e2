"""`top` at a real terminal: what it shows, its keys, and that the terminal is as it was however it ends."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Iterator, Mapping

import pytest

from tests.queuebell.command.test_key import created
from tests.support.command import COMMAND, Serving, perform, serving
from tests.support.processes import free_port
from tests.support.terminal import Terminal

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One bridge for all, with queues of which one has work and nobody."""
    with serving(tmp_path_factory.mktemp("top") / "q.db") as running:
        running.client("queue", "create", "shop/idle")
        running.client("queue", "put", "billing/orders", "x", "y")
        yield running


def top(bridge: Serving | str, *words: str, columns: int = 100, env: Mapping[str, str] | None = None) -> Terminal:
    """Run it."""
    url = bridge if isinstance(bridge, str) else bridge.url
    return Terminal([*COMMAND, "top", *words, "--bridge", url], columns=columns, env=env)


def left(terminal: Terminal) -> int:
    """Wait for its end, and see that the terminal is as it was."""
    code = terminal.ended()
    assert terminal.settings() == terminal.before
    assert terminal.raw.rfind(LEAVE) > terminal.raw.rfind(ENTER) > -1
    assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l")
    return code


def names(lines: list[str]) -> list[str]:
    """Return the queues that are shown, in their order."""
    return [word for line in lines for word in line[4:].split(" ")[:1] if "/" in word and not line.startswith("q end")]


def test_it_is_live_sorted_filtered_and_ended_by_q(bridge: Serving) -> None:
    """Trouble first; another order by a letter and by s; only those with a text; one in detail; and back."""
    with top(bridge) as terminal:
        lines = terminal.shows("billing/orders", "shop/idle", "live")
        assert names(lines) == ["billing/orders", "shop/idle"]
        assert any(line.startswith(">!  billing/orders") and "no listener" in line for line in lines)
        bridge.client("queue", "put", "alpha/new", "z")
        terminal.shows("alpha/new")
        terminal.keys("n")
        terminal.until(lambda lines: names(lines) == ["alpha/new", "billing/orders", "shop/idle"], "by name")
        terminal.shows("by name")
        terminal.keys("ns")  # the second comes before the view that the first asked for, and counts all the same
        terminal.shows("by waiting")
        terminal.keys("/idx\x7f\x1b")
        terminal.until(lambda lines: "filter" not in lines[2] and lines[-1].startswith("q end"), "no filter")
        terminal.keys("/idx\x7fl")
        terminal.shows("filter: idl_")
        terminal.keys("\r")
        terminal.until(lambda lines: names(lines) == ["shop/idle"], "filtered")
        terminal.keys("/\x7f\x7f\x7f\r")
        terminal.until(lambda lines: len(names(lines)) == 3, "all again")
        terminal.keys("n")
        terminal.until(lambda lines: len(names(lines)) == 3 and "by name" in lines[2], "by name, with rows")
        terminal.keys("j\r")
        terminal.shows("billing/orders", "nobody listens", "esc back")
        terminal.keys("\x1b")
        terminal.until(lambda lines: len(names(lines)) == 3, "all again")
        terminal.keys("q")
        assert left(terminal) == 0
    assert bridge.client("status", "shop/idle", "--json").count('"receives":{"total":0') == 1, "it cost no receive"


def test_a_paused_display_stands_still(bridge: Serving) -> None:
    """Until it goes on."""
    with top(bridge, "paus") as terminal:
        terminal.shows("live")
        terminal.keys("p")
        terminal.shows("paused")
        bridge.client("queue", "create", "pauses/later")
        with top(bridge, "paus") as other:
            other.shows("pauses/later")
        assert names(terminal.screen()) == []
        terminal.keys("p")
        terminal.shows("pauses/later", "live")


@pytest.mark.parametrize(
    ("end", "code"), [("\x03", 0), (signal.SIGTERM, 128 + signal.SIGTERM), ("q", 0)], ids=["ctrl-c", "term", "q"]
)
def test_the_terminal_is_given_back(bridge: Serving, end: str | signal.Signals, code: int) -> None:
    """Whatever ends it."""
    with top(bridge) as terminal:
        terminal.shows("billing/orders")
        if isinstance(end, str):
            terminal.keys(end)
        else:
            terminal.signal(end)
        assert left(terminal) == code


def test_the_terminal_is_given_back_after_a_crash(bridge: Serving, tmp_path: pathlib.Path) -> None:
    """What went wrong is read below, and not on a screen that is gone."""
    (tmp_path / "broken.py").write_text(
        "import sys\nfrom queuebell.command import top\n"
        "top.Looking.next_sort = lambda self: 1 / 0\nfrom queuebell.command.main import main\nsys.exit(main())\n"
    )
    words = [COMMAND[0], str(tmp_path / "broken.py"), "top", "--bridge", bridge.url]
    with Terminal(words) as terminal:
        terminal.shows("billing/orders")
        terminal.keys("s")
        assert left(terminal) == 1
        assert "ZeroDivisionError" in terminal.raw[terminal.raw.rfind(LEAVE) :]


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(bridge: Serving) -> None:
    """As a shell's job control has it."""
    with top(bridge) as terminal:
        terminal.shows("billing/orders")
        terminal.keys("\x1a")
        terminal.until(lambda _: terminal.raw.endswith(LEAVE) and terminal.settings() == terminal.before, "left")
        terminal.raw = ""
        terminal.signal(signal.SIGCONT)
        terminal.shows("billing/orders", "live")
        assert ENTER in terminal.raw
        terminal.keys("q")
        assert left(terminal) == 0


def test_it_follows_the_size_of_its_terminal(bridge: Serving) -> None:
    """Columns come and go, and nothing of the larger screen is left."""
    with top(bridge, columns=120) as terminal:
        assert "RECV/S" in terminal.shows("billing/orders")[3]
        terminal.resize(40, 10)
        lines = terminal.until(lambda lines: "WAITING" in lines[3] and "OLDEST" not in lines[3], "narrow")
        assert len(lines) == 10 and max(map(len, lines)) <= 40
        terminal.resize(200, 50)
        terminal.until(lambda lines: "RECV/S" in lines[3] and lines[-1].startswith("q end"), "wide")


def test_colours_are_heeded(bridge: Serving) -> None:
    """Red where there is trouble, and none with NO_COLOR (which the terminal of these tests sets)."""
    with top(bridge, env={"NO_COLOR": ""}) as terminal:
        terminal.shows("billing/orders")
        assert ";31m" in terminal.raw
    with top(bridge) as terminal:
        terminal.shows("billing/orders")
        assert "31m" not in terminal.raw


def test_it_goes_on_after_a_restart_of_the_bridge(tmp_path: pathlib.Path) -> None:
    """What was known stays and is said to be old; then it is live again."""
    port = free_port()
    words = ("--listen", f"127.0.0.1:{port}")
    with serving(tmp_path / "q.db", *words) as bridge:
        bridge.client("queue", "put", "a/b", "x")
        with top(bridge) as terminal:
            terminal.shows("a/b", "live")
            bridge.stop()
            terminal.shows("a/b", "NOT LIVE", "it is asked again:")
            with serving(tmp_path / "q.db", *words):
                terminal.until(lambda lines: "live" in lines[0] and "a/b" in lines[4], "live again")
                terminal.keys("q")
                assert left(terminal) == 0


def test_a_grant_that_ends_is_said(tmp_path: pathlib.Path) -> None:
    """After the terminal was given back, with code 1; and a key that may not look from the beginning."""
    secret = created(tmp_path, "watcher", "look=*")
    with serving(tmp_path, "--auth") as bridge:
        with top(bridge, env={"QUEUEBELL_API_KEY": secret}) as terminal:
            terminal.shows("live", "no trouble")
            perform("key", "revoke", "watcher", "--data", str(tmp_path))
            assert left(terminal) == 1
            said = terminal.raw[terminal.raw.rfind(LEAVE) :]
            assert "queuebell top: " in said and "what was granted has ended" in said
        with top(bridge, env={"QUEUEBELL_API_KEY": secret}) as terminal:
            assert terminal.ended() == 1
            assert ENTER not in terminal.raw and "queuebell top: " in terminal.raw


def test_without_a_terminal_it_says_what_to_use() -> None:
    """A pipe, a file or a terminal that cannot move its cursor: 2, before anybody is asked."""
    done = perform("top", code=2)
    assert done.stdout == b"" and b"queuebell status --watch" in done.stderr
    with Terminal([*COMMAND, "top"], env={"TERM": "dumb"}) as terminal:
        assert terminal.ended() == 2
        assert "queuebell status" in terminal.raw


@pytest.mark.parametrize("others", ["", ",http://127.0.0.1:2"])
def test_where_no_bridge_answers_it_says_so(others: str) -> None:
    """At once, with 69, and the terminal is not touched."""
    with top(f"http://127.0.0.1:1{others}") as terminal:
        assert terminal.ended() == 69
        assert ENTER not in terminal.raw and "no bridge answers" in terminal.raw
