"""What comes on the subjects of a cluster: words of bridges, nearly words, and anything else, for fuzzers."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import strategies as st

from tests.support.bells import BOOT, QUEUE
from tests.support.member import FIRST, LAST

STRANGER: Final = "5" * 32
_HUGE: Final = [-1, 0, 1, 2, 1500, 2**31, 315_360_000_000, 2**53, 2**63 - 1, 2**63, 10**30]
_numbers = st.sampled_from(_HUGE) | st.integers(0, 50)
_odd = st.one_of(
    st.none(), st.booleans(), _numbers, st.floats(), st.text(max_size=12), st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), st.just("x" * 3000),
)  # fmt: skip
_boots = st.sampled_from([FIRST, FIRST, FIRST, LAST, BOOT, STRANGER])
_queues = st.sampled_from([QUEUE, QUEUE, "billing/refunds", "a/b"]) | st.integers(0, 10**9).map(lambda n: f"many/q{n}")
_stores = st.none() | st.sampled_from(["aa", "bb"])
_pairs = st.lists(_numbers, min_size=2, max_size=2)
_heard = st.dictionaries(_boots, _pairs, max_size=4)
_names = st.lists(st.sampled_from(["producer", "1", "2", "x" * 256]), min_size=2, max_size=2)
_abilities = st.none() | st.fixed_dictionaries(
    {"room": st.booleans(), "visibility_ms": _numbers}, optional={"store": _stores}
)
_FIELDS: Final = {
    "member": {
        "seq": _numbers, "cluster": st.sampled_from(["", "", "other"]), "address": st.none() | st.just("http://a:8470"),
        "version": st.just("1.0"), "store": st.just(None) | _stores, "webhooks": st.none() | st.just("5eed"),
        "full": st.lists(_queues, max_size=3), "leaving": st.booleans(), "told": st.booleans(),
    },
    "able": {
        "seq": _numbers, "queues": st.dictionaries(_queues, _abilities, max_size=5), "whole": st.booleans(),
        "asks": st.booleans(),
    },
    "covered": {
        "queue": _queues, "store": _stores, "begun_age_ms": st.none() | _numbers, "heard": _heard,
        "ids": st.lists(_names, max_size=40), "next_visible_in_ms": st.none() | _numbers,
    },
    "asked": {
        "store": _stores, "place": st.just("p" * 32), "begun_age_ms": _numbers, "heard": _heard,
        "queues": st.lists(_queues, max_size=3),
    },
    "sent": {
        "queue": _queues, "hook": st.none() | st.just("a" * 32), "age_ms": _numbers, "heard": _heard,
    },
}  # fmt: skip
TYPES: Final = tuple(_FIELDS)


def _word(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    needed = {"type": st.just(kind), "boot": _boots}
    first = {name: values for name, values in _FIELDS[kind].items() if name in {"seq", "queue", "place"}}
    more = {name: values for name, values in _FIELDS[kind].items() if name not in first}
    return st.fixed_dictionaries({**needed, **first}, optional=more)


def _spoilt(word: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Put something else for one field, or leave it out, or add one of tomorrow."""
    fields = st.sampled_from([*word, "tomorrow"])
    without = fields.map(lambda name: {key: value for key, value in word.items() if key != name})
    return without | st.tuples(fields, _odd).map(lambda change: {**word, change[0]: change[1]})


words = st.sampled_from(TYPES).flatmap(_word)
"""Right in form, mostly; wrong in what they say, as somebody says who may publish there and is no bridge."""


def _torn(change: tuple[dict[str, Any], int, bytes]) -> bytes:
    word, at, noise = change
    raw = json.dumps(word).encode()
    return raw[:at] + noise + raw[at:]


payloads = st.one_of(
    words.map(lambda word: json.dumps(word).encode()),
    words.flatmap(_spoilt).map(lambda word: json.dumps(word).encode()),
    st.tuples(words, st.integers(0, 300), st.binary(max_size=4)).map(_torn),
    st.binary(max_size=60),
    st.sampled_from([b"[" * 500, b'{"type": "able", "boot": ' + b"9" * 500 + b"}", b"\xff\xfe", b"null", b"1e999"]),
)
"""Bytes: words, words with something wrong, torn ones, and none at all."""
