"""Log lines: one line each, no forgery, no flood."""

from __future__ import annotations

import io
import json
import logging

import pytest

from bridge.observe import facts
from bridge.observe.logs import FactLog, JsonLines, PlainLines, Repetition, configure


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("queuebell.web", logging.WARNING, __file__, 1, message, args, None)
    vars(made).update(extra)
    made.created = 0.0
    return made


def test_a_plain_line_cannot_be_forged() -> None:
    """Control characters of a peer's words neither begin a second line nor drive a terminal."""
    line = PlainLines().format(record("hello %s", "a\nb\x1b[2J", peer="x\ry"))
    assert line == "1970-01-01T00:00:00.000Z warning web: hello a\\nb\\x1b[2J peer=x\\ry"


def test_a_json_line_holds_what_is_known() -> None:
    """Extras are fields of their own, whatever they are."""
    line = JsonLines().format(record("hello\n", queue="a/q", odd=object))
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["message"], entry["level"], entry["queue"]) == ("hello\n", "warning", "a/q")
    assert entry["time"] == "1970-01-01T00:00:00.000Z"


@pytest.mark.parametrize("form", [PlainLines(), JsonLines()])
def test_a_traceback_is_kept(form: logging.Formatter) -> None:
    """An error with a traceback shows where it was raised."""
    made = record("oops")
    try:
        raise ValueError("inner")
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    assert "ValueError: inner" in form.format(made)


def test_repetitions_are_counted_instead_of_written() -> None:
    """Ten lines of a kind in ten seconds pass; the next period says how many did not, and other kinds are free."""
    now = 0.0
    limit = Repetition(clock=lambda: now)
    assert sum(limit.filter(record("noise %d", n)) for n in range(100)) == 10
    assert limit.filter(record("something else"))
    now = 10.0
    late = record("noise %d", 1)
    assert limit.filter(late)
    assert late.getMessage() == "noise 1 (90 more like this were left out)"


def test_two_different_faults_are_both_heard() -> None:
    """Words that are only filled in, or the exception behind equal words, make another kind: none buries another."""
    limit = Repetition(clock=lambda: 0.0)
    broken, lost = record("it broke"), record("it broke")
    broken.exc_info, lost.exc_info = (ValueError, ValueError("x"), None), (OSError, OSError("x"), None)
    for one, other in (
        (record("%s", "the disk is full"), record("%s", "the file is damaged")),
        (record("%s%s", "a client sent too much", ""), record("%s%s", "a handler broke", "")),
        (broken, lost),
    ):
        assert sum(limit.filter(one) for _ in range(100)) == 10
        assert limit.filter(other)


def test_kinds_are_bounded() -> None:
    """A million kinds of line do not fill the memory."""
    limit = Repetition(burst=1, clock=lambda: 0.0)
    assert limit.filter(record("first"))
    for number in range(1, Repetition.KINDS_MAX):
        assert limit.filter(record(f"kind {number}"))
    assert not limit.filter(record("first"))
    assert limit.filter(record("one too many"))
    assert limit.filter(record("first")), "it was forgotten, as the oldest of them"


def test_a_refused_listener_is_told_of_once_until_it_was_let_in() -> None:
    """It asks again for ever; another name, another reason and a relapse are news."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(f"{vars(record)['listener']} {vars(record)['code']}")  # type: ignore[method-assign]
    log = logging.getLogger("queuebell.bridge")
    log.addHandler(handler)
    try:
        tell = FactLog()
        for listener, code in (("a", "store_mismatch"), ("a", "store_mismatch"), ("b", "x"), ("a", "x"), ("b", "x")):
            tell(facts.SessionRefused(listener, code, "why"))
        assert heard == ["a store_mismatch", "b x", "a x"]
        log.removeHandler(handler)
        tell(facts.SessionOpened(1, "b", "local", 1))
        log.addHandler(handler)
        tell(facts.SessionRefused("b", "x", "why"))
        assert heard[3:] == ["b x"]
        for number in range(FactLog.REFUSED_MAX):
            tell(facts.SessionRefused(f"n{number}", "x", "why"))
        heard.clear()
        for listener in ("n1", "one too many", "n0"):
            tell(facts.SessionRefused(listener, "x", "why"))
        assert heard == ["one too many x", "n0 x"], "the one told of longest ago is forgotten"
    finally:
        log.removeHandler(handler)


def test_configure_installs_one_handler_and_facts_are_told() -> None:
    """Facts that a person would want to read become lines; the others do not."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.getLogger("queuebell").level)
    stream = io.StringIO()
    try:
        configure("json", "info", stream)
        tell = FactLog()
        tell(facts.SessionClosed(1, "worker", "lost"))
        tell(facts.Triggered("a/q", "http", 1))
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        logging.getLogger("queuebell").setLevel(before[2])
    (entry,) = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (entry["message"], entry["listener"], entry["reason"]) == ("a listener went", "worker", "lost")
