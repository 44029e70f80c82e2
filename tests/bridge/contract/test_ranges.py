"""What a frame may say: every number has its range, and a fingerprint is hex."""

from __future__ import annotations

import json

import pytest

from bridge.contract.errors import BadInput
from bridge.contract.wire import MS_MAX, decode_up

BOOT = "b" * 32


def hello(**subscription: object) -> dict[str, object]:
    """Return a hello whose only queue says this."""
    queues = [{"queue": "a/b", "capacity": 1, **subscription}]
    return {"type": "hello", "instance": "1" * 32, "listener": "x", "queues": queues}


def cover(**fields: object) -> dict[str, object]:
    """Return a cover that says this besides."""
    return {"type": "cover", "queue": "a/b", "boot": BOOT, "gen": 1, "age_ms": 0, **fields}


def room(gen: int) -> dict[str, object]:
    """Return a `room` that knows of wakes up to ``gen``."""
    return {"type": "room", "queue": "a/b", "free": 1, "gen": gen}


def beat(**levels: object) -> dict[str, object]:
    """Return a heartbeat that says this of its only queue."""
    return {"type": "heartbeat", "stamp": 1, "queues": {"a/b": levels}}


@pytest.mark.parametrize(
    "frame",
    [
        room(2**62), room(-5), room(MS_MAX + 1),
        hello(seen={"boot": BOOT, "gen": -1}), hello(seen={"boot": BOOT, "gen": MS_MAX + 1}),
        hello(seen={"boot": "x", "gen": 1}),
        hello(store=""), hello(store="xyz"), hello(store="\u0663"), hello(store="\u00e9"), hello(store="a" * 129),
        hello(store="a1\n"), cover(store="no hex"), cover(store="\u0663"), cover(store="a" * 129),
        beat(failing_ms=-1), beat(failing_ms=MS_MAX + 1), beat(failing_ms="long"),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(frame: dict[str, object]) -> None:
    """With the code of a bad field, and before any rule meets it."""
    with pytest.raises(BadInput) as refusal:
        decode_up(json.dumps(frame))
    assert refusal.value.code == "bad_parameter"


@pytest.mark.parametrize(
    "frame",
    [
        room(0), room(MS_MAX), hello(seen={"boot": BOOT, "gen": 0}), hello(store="0aF" * 20), cover(store="a" * 128),
        beat(failing_ms=0), beat(failing_ms=MS_MAX), beat(of_a_later_version=7),
    ],
)  # fmt: skip
def test_what_is_within_is_taken(frame: dict[str, object]) -> None:
    """Both ends of every range."""
    assert decode_up(json.dumps(frame)) is not None
