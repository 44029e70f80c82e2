"""Log lines: one line each, no forgery, no flood."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from queuebell.bridge.observe import facts
from queuebell.bridge.observe.logs import FactLog, JsonLines, PlainLines, Repetition


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("queuebell.web", logging.WARNING, __file__, 1, message, args, None)
    vars(made).update(extra)
    made.created = 0.0
    return made


def test_a_plain_line_cannot_be_forged() -> None:
    """Control characters of a peer's words neither begin a second line nor drive a terminal."""
    line = PlainLines().format(record("hello %s", "a\nb\x1b[2J", peer="x\ry"))
    assert line == "1970-01-01T00:00:00.000Z warning web: hello a\\nb\\x1b[2J peer=x\\ry"


def test_a_line_of_json_has_these_keys() -> None:
    told = {"level": "warning", "logger": "queuebell.web", "message": "hello", "peer": "x"}
    assert json.loads(JsonLines().format(record("hello", peer="x"))) == {"time": "1970-01-01T00:00:00.000Z", **told}


@pytest.mark.parametrize("form", [PlainLines(), JsonLines()])
def test_a_traceback_is_kept(form: logging.Formatter) -> None:
    made = record("oops")
    try:
        raise ValueError("inner")
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    assert "ValueError: inner" in form.format(made)


def test_lines_of_a_kind_are_omitted_and_counted() -> None:
    """The same words with an error of another type, of another level or logger, are another kind."""
    now = 0.0
    limit = Repetition(burst=2, period=10.0, clock=lambda: now)

    def passes(error: type[Exception] | None = None, **other: object) -> str | None:
        made = record("%s broke", "it", **other)
        if error is not None:
            made.exc_info = (error, error(), None)
        return made.getMessage() if limit.filter(made) else None

    kinds: list[dict[str, Any]] = [
        {"error": KeyError},
        {"error": ValueError},
        {"levelno": logging.ERROR},
        {"name": "b"},
    ]
    for kind in [{}, *kinds]:
        assert [passes(**kind) for _ in range(4)] == ["it broke", "it broke", None, None]
    now = 9.9
    assert passes(KeyError) is None
    now = 10.0
    assert [passes(KeyError), passes(KeyError)] == ["it broke (3 similar lines omitted)", "it broke"]
    now = 20.0
    assert passes(KeyError) == "it broke", "none was omitted since"
    assert [limit.filter(record("%s: %s", "a", number)) for number in range(3)] == [True] * 3, "a form without words"


def test_kinds_are_bounded() -> None:
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
