"""Trace contexts of triggers that became one: bounded, each once, and none that is not of W3C's form."""

from __future__ import annotations

import pytest

from bridge.contract.event import CloudQueueWorkDetected, decode_events, encode_event
from bridge.contract.trace_context import (
    DROPPED_MAX,
    TRACES_MAX,
    Traces,
    carried,
    is_traceparent,
    joined,
    merged,
    several,
)
from bridge.contract.wire import Wake

HOSTILE = (
    "",
    "t",
    "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
    "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n",
    " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
    "00-4bf92f3577b34da6a3ce929d0e0e473\u0666-00f067aa0ba902b7-01",
    "\r\nSet-Cookie: x",
)


def parent(number: int) -> str:
    return f"00-{number + 1:032x}-{number + 1:016x}-01"


def told(number: int | None, traces: Traces | None = None) -> CloudQueueWorkDetected:
    return CloudQueueWorkDetected("a", "q", traceparent=None if number is None else parent(number), traces=traces)


@pytest.mark.parametrize("text", [*HOSTILE, None])
def test_what_is_no_traceparent_is_dropped(text: str | None) -> None:
    """Ids of noughts, capitals, white space, a version that is none, and what stands behind it."""
    assert not is_traceparent(text)
    event = CloudQueueWorkDetected("a", "q", traceparent=text, traces=Traces((text or "x", "y"), 3))
    assert merged(None, event) is None
    before = Traces((parent(0),))
    assert merged(before, event) in (before, Traces((parent(0),), 3))


def test_a_traceparent_is_one_of_any_version_in_the_length_of_the_first() -> None:
    """W3C keeps the first four fields in later versions; a sampled one and one that is not are both contexts."""
    rest = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
    assert all(is_traceparent(text) for text in (f"00-{rest}-01", f"00-{rest}-00", f"fe-{rest}-ff"))


def test_each_context_is_kept_once_and_in_order() -> None:
    """Merged one by one, and both ways: what was told twice is one."""
    traces = None
    for number in (0, 1, 0, 2):
        traces = merged(traces, told(number))
    assert traces == Traces((parent(0), parent(1), parent(2)))
    assert merged(traces, told(None)) is traces, "a trigger without a trace costs nothing"
    older, newer = told(0, Traces((parent(3), parent(0)))), told(1)
    assert joined(older, newer) == Traces((parent(3), parent(0), parent(1)))


def test_the_newest_are_kept_and_the_others_counted() -> None:
    """32, however they come: one by one, or from somebody who tells of more than there may be."""
    traces = None
    for number in range(TRACES_MAX + 3):
        traces = merged(traces, told(number))
    kept = tuple(map(parent, range(3, TRACES_MAX + 3)))
    assert traces == Traces(kept, 3)
    many = Traces(tuple(map(parent, range(TRACES_MAX + 3))), 4)
    assert merged(None, told(None, many)) == Traces(kept, 7)
    wild = Traces((parent(0),), 2**62)
    assert merged(wild, told(1, wild)) == Traces((parent(0), parent(1)), DROPPED_MAX)
    assert merged(None, told(1, Traces((parent(0),), -5))) == Traces((parent(0), parent(1)))


def test_only_what_the_newest_does_not_tell_is_told_beside_it() -> None:
    """A wake of one trigger is the bytes that it always was."""
    assert several(None) is None
    assert several(Traces((parent(0),))) is None
    assert several(Traces((parent(0),), 1)) == Traces((parent(0),), 1)
    assert several(two := Traces((parent(0), parent(1)))) is two


def test_the_contexts_of_messages_are_those_in_their_headers() -> None:
    """Each once, the newest where there are too many; a message without one, or with a hostile one, has none."""
    assert carried([{}, {"traceparent": "x"}, {"shop": "7"}]) is None
    headers = [{"traceparent": parent(number)} for number in (0, 1, 0)]
    assert carried([{}, *headers]) == Traces((parent(0), parent(1)))
    many = [{"traceparent": parent(number)} for number in range(TRACES_MAX + 2)]
    assert carried(many) == Traces(tuple(map(parent, range(2, TRACES_MAX + 2))), 2)


def test_they_travel_in_triggers_and_wakes() -> None:
    """As a list and a count; absent where there are none."""
    event = told(1, Traces((parent(0), parent(1)), 2))
    assert decode_events(encode_event(event)) == [event]
    assert b"traces" not in encode_event(told(1))
    assert Wake("a/q", "b" * 32, 1, "trigger", 1, 0).traces is None
