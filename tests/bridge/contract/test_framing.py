"""What a frame carries besides itself over brokers (S1)."""

from __future__ import annotations

import msgspec
import pytest

from queuebell.bridge.contract.event import CloudQueueWorkDetected, decode_events, encode_event
from queuebell.bridge.contract.framing import (
    LAST_COUNT,
    Stamp,
    encode_up,
    encode_will,
    instance_of,
    is_instance,
    is_will,
    read_stamp,
    seq_of,
)
from queuebell.bridge.contract.trace_context import (
    Traces,
    is_traceparent,
    merged,
    several,
)
from queuebell.bridge.contract.wire import (
    Hello,
    Subscription,
    Wake,
    decode_up,
)

ME = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("seq", "will"),
    [(None, False), (0, False), (LAST_COUNT, True), (LAST_COUNT - 1, False), (seq_of(5, LAST_COUNT), True)],
)
def test_a_will_is_known_by_its_number(seq: int | None, will: bool) -> None:
    assert is_will(Stamp(ME, seq)) is will


def test_an_instance_is_made_of_its_ticket() -> None:
    """As the page of the wire says it: the first 32 hexadecimal digits of SHA-256, for any text."""
    assert instance_of("abc") == "ba7816bf8f01cfea414140de5dae2223"
    assert is_instance(instance_of("")) and is_instance(instance_of("é" * 9000))


def test_what_proves_a_sender_is_carried_and_not_shown() -> None:
    """Key and ticket go through, the last will has the ticket; a stamp that is logged shows neither."""
    hello = Hello(ME, "me", [Subscription("a/b", 1)])
    data = encode_up(hello, ME, 1, ticket="f" * 32, credential="qb_secret.~+/-=")
    assert decode_up(data) == msgspec.structs.replace(hello, seq=1)
    stamp = read_stamp(data)
    assert stamp == Stamp(ME, 1, None, None, "qb_secret.~+/-=", "f" * 32, 2)
    assert "qb_secret" not in f"{stamp!r} {stamp}"
    assert "f" * 32 not in f"{stamp!r} {stamp}"
    assert read_stamp(encode_will(ME, 3, ticket="f" * 32)).ticket == "f" * 32


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


def test_only_what_the_newest_does_not_tell_is_told_beside_it() -> None:
    assert several(None) is None
    assert several(Traces((parent(0),))) is None
    assert several(Traces((parent(0),), 1)) == Traces((parent(0),), 1)
    assert several(two := Traces((parent(0), parent(1)))) is two


def test_they_travel_in_triggers_and_wakes() -> None:
    event = told(1, Traces((parent(0), parent(1)), 2))
    assert decode_events(encode_event(event)) == [event]
    assert b"traces" not in encode_event(told(1))
    assert Wake("a/q", "b" * 32, 1, "trigger", 1, 0).traces is None
