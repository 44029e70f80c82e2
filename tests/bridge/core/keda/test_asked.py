"""The metadata of a ScaledObject: every key is checked, and what is wrong is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import BadInput, ConfigurationError
from bridge.core.keda.asked import KEY, KEYS, KedaStore, Target, asked

STORES = ("east", "west")


@pytest.mark.parametrize(
    ("metadata", "target"),
    [
        ({"queue": "billing/orders"}, Target("billing/orders", None, 32, 10)),
        ({"queue": "a/b", "perProcess": "1", "startSeconds": "0"}, Target("a/b", None, 1, 0)),
        ({"queue": "a/b", "perProcess": "1000000", "startSeconds": "600"}, Target("a/b", None, 1_000_000, 600)),
        ({"queue": "a/b", KEY: "x" * 8192}, Target("a/b")),
        ({"queue": "a/b", "perProcess": "007", "store": "east"}, Target("a/b", "east", 7, 10)),
        (
            {
                "queue": "a/b",
                "scalerAddress": "b:1",
                "enableTLS": "true",
                "unsafeSsl": "no",
                "tlsCertFile": "",
                KEY: "k",
            },
            Target("a/b"),
        ),
    ],
)
def test_what_is_right(metadata: dict[str, str], target: Target) -> None:
    """Defaults, bounds, and the keys that KEDA reads itself."""
    assert asked(metadata, STORES) == target


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({}, "queue: is missing"),
        ({"queue": ""}, "queue: one queue"),
        ({"queue": "orders"}, "queue: one queue"),
        ({"queue": "a/b:8"}, "of a partitioned one each part by itself"),
        ({"queue": "a/b", "quue": "a/b"}, "'quue' is none that is known here: queue, perProcess, startSeconds, store"),
        ({"queue": "a/b", "Queue": "a/b"}, "'Queue' is none that is known here"),
        ({"queue": "a/b", "x\n": ""}, "there is a key that is none"),
        ({"queue": "a/b", "y" * 41: ""}, "there is a key that is none"),
        *(
            ({"queue": "a/b", "perProcess": text}, "perProcess: is a whole number from 1 to 1000000, in quotes")
            for text in ("0", "-1", "1.5", "", " 1", "1000001", "9" * 5000, "١", "1e3")
        ),
        *(
            ({"queue": "a/b", "startSeconds": text}, "startSeconds: is a whole number from 0 to 600")
            for text in ("601", "-0", "ten")
        ),
        (
            {"queue": "a/b", "store": "north"},
            "store: is the name of a [[keda_store]] of this bridge: one of east, west",
        ),
        ({"queue": "a/b", KEY: "x" * 8193}, "at most 32 keys, each of 8192 characters"),
        ({str(number): "" for number in range(33)}, "at most 32 keys"),
        ({str(number): "" for number in range(32)}, "'0' is none that is known here"),
    ],
)
def test_what_is_wrong(metadata: dict[str, str], told: str) -> None:
    """Each mistake is told in words that say where it is and what would be right."""
    with pytest.raises(BadInput) as caught:
        asked(metadata, STORES)
    assert told in str(caught.value)
    assert caught.value.code == "bad_parameter"


def test_a_bridge_without_stores_says_so() -> None:
    """Whoever names a store learns that there is none to name."""
    with pytest.raises(BadInput, match="there is none"):
        asked({"queue": "a/b", "store": "east"}, ())


@given(st.dictionaries(st.sampled_from([*KEYS, "scalerAddress", "other"]) | st.text(max_size=8), st.text(max_size=12)))
def test_whatever_comes(metadata: dict[str, str]) -> None:
    """It is a target or a refusal, no value of another key is echoed, and least of all the credential."""
    metadata[KEY] = "qb_topsecret"
    told = ""
    try:
        target = asked(metadata, STORES)
    except BadInput as error:
        told = str(error)
    if told:
        assert "topsecret" not in told
        assert told.isprintable()
    else:
        assert target.queue == metadata["queue"]
        assert 1 <= target.per_process <= 1_000_000
        assert 0 <= target.start_s <= 600


def test_a_metric_is_one_segment_of_a_path() -> None:
    """Kubernetes asks for it by its name in an address."""
    assert Target("billing/orders").metric == "queuebell-billing-orders"


@pytest.mark.parametrize("name", ["", "a b", "x" * 81, "-x"])
def test_a_store_has_a_plain_name(name: str) -> None:
    """It stands in a ScaledObject."""
    with pytest.raises(ConfigurationError, match="keda_store: name"):
        KedaStore(name=name, url="redis://h")
