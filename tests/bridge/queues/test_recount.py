"""When an empty receive is worth a count."""

from __future__ import annotations

import pytest

from bridge.queues import recount
from bridge.queues.recount import Recount


def test_a_quiet_queue_is_counted_once() -> None:
    """Counted empty, a queue is not counted again until messages go by; another queue has its own turn."""
    rule = Recount()
    assert rule.worth("a/b")
    rule.counted("a/b", 0)
    assert not rule.worth("a/b")
    assert rule.worth("a/c")
    rule.stirred("a/b")
    assert rule.worth("a/b")


def test_what_waits_is_counted_again() -> None:
    """As long as a count finds leased or delayed messages, the next empty receive is worth another."""
    rule = Recount()
    rule.counted("a/b", 0)
    rule.counted("a/b", 3)
    assert rule.worth("a/b")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many quiet queues are forgotten, which only costs a count."""
    monkeypatch.setattr(recount, "REMEMBERED_MAX", 2)
    rule = Recount()
    for name in ("a/1", "a/2", "a/3"):
        rule.counted(name, 0)
    assert [rule.worth(name) for name in ("a/1", "a/2", "a/3")] == [True, True, False]
