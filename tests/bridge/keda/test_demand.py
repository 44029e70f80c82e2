"""How much work there is: every combination of what can be known, against what has to hold of the answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from queuebell.bridge.contract.errors import BadInput, ConfigurationError
from queuebell.bridge.keda.demand import Known
from queuebell.bridge.keda.scaled_object import KEY, KedaStore, asked


def every() -> Iterator[Known]:
    """All combinations of the values at which something changes."""
    flags = (False, True)
    for announced, paused, unseen, lapsed in itertools.product(flags, repeat=4):
        for visible, invisible, busy in itertools.product((None, 0, 1, 40), (0, 1, 9, 40), (0, 1, 2)):
            for due_s, leased in itertools.product((None, 0.0, 10.0, 10.5), (None, 0, 9)):
                if (visible is not None or not invisible) and (leased or 0) <= invisible:
                    yield Known(
                        announced=announced, paused=paused, visible=visible, invisible=invisible, busy=busy,
                        unseen=unseen, lapsed=lapsed, due_s=due_s, leased=leased,
                    )  # fmt: skip


STORES = ("east", "west")


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({}, "queue: is missing"),
        ({"queue": ""}, "queue: must be one queue"),
        ({"queue": "orders"}, "queue: must be one queue"),
        ({"queue": "a/b:8"}, "for a partitioned queue, use one trigger per partition"),
        ({"queue": "a/b", "quue": "a/b"}, "unknown key 'quue'; the keys are queue, perProcess, startSeconds, store"),
        ({"queue": "a/b", "Queue": "a/b"}, "unknown key 'Queue'"),
        ({"queue": "a/b", "x\n": ""}, "unknown key; the keys are queue"),
        ({"queue": "a/b", "y" * 41: ""}, "unknown key; the keys are queue"),
        *(
            ({"queue": "a/b", "perProcess": text}, "perProcess: must be a whole number from 1 to 1000000, in quotes")
            for text in ("0", "-1", "1.5", "", " 1", "1000001", "9" * 5000, "١", "1e3")
        ),
        *(
            ({"queue": "a/b", "startSeconds": text}, "startSeconds: must be a whole number from 0 to 600")
            for text in ("601", "-0", "ten")
        ),
        (
            {"queue": "a/b", "store": "north"},
            "store: must be the name of a [[keda_store]] of this bridge: one of east, west",
        ),
        ({"queue": "a/b", KEY: "x" * 8193}, "at most 32 keys, each of at most 8192 characters"),
        ({str(number): "" for number in range(33)}, "at most 32 keys"),
        ({str(number): "" for number in range(32)}, "unknown key '0'"),
    ],
)
def test_what_is_wrong(metadata: dict[str, str], told: str) -> None:
    """Each mistake is told in words that say where it is and what would be right."""
    with pytest.raises(BadInput) as caught:
        asked(metadata, STORES)
    assert told in str(caught.value)
    assert caught.value.code == "bad_parameter"


@pytest.mark.parametrize("name", ["", "a b", "x" * 81, "-x"])
def test_a_store_has_a_plain_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="keda_store: name"):
        KedaStore(name=name, url="redis://h")
