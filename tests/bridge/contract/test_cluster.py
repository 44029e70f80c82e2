"""The words between bridges: whole ones come back as they were, and everything else has a clear refusal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from queuebell.bridge.contract.cluster import (
    MEMBERS_MAX,
    NAMES_MAX,
    QUEUES_MAX,
    ROUND_QUEUES_MAX,
    Ability,
    Able,
    Asked,
    ClusterMessage,
    Covered,
    Member,
    Sent,
    decode_cluster_message,
    encode_cluster_message,
)
from queuebell.bridge.contract.errors import BadInput, BadQueueReference
from queuebell.bridge.contract.wire import MS_MAX
from tests.support.words import payloads

BOOT = "0123456789abcdef" * 2
QUEUE = "billing/orders"

WHOLE: list[ClusterMessage] = [
    Member(boot=BOOT, seq=7),
    Member(
        boot=BOOT, seq=7, address="https://a:8470", version="1.0", store="ab", engine="cd", full=(QUEUE,), leaving=True
    ),
    Able(boot=BOOT, seq=0, queues={QUEUE: Ability(True, 30_000, "ab"), "a/bcd": None}, whole=True),
    Covered(boot=BOOT, queue=QUEUE),
    Covered(
        boot=BOOT, queue=QUEUE, store="ab", begun_age_ms=0, heard={BOOT: (3, MS_MAX)}, ids=(("source", "id"),),
        next_visible_in_ms=MS_MAX,
    ),
    Asked(boot=BOOT, store="ab", place="p" * 64, begun_age_ms=0),
    Asked(
        boot=BOOT, store="ab", place="", begun_age_ms=MS_MAX, heard={BOOT: (3, 0)}, queues=(QUEUE,) * ROUND_QUEUES_MAX
    ),
    Sent(boot=BOOT, queue=QUEUE),
    Sent(boot=BOOT, queue=QUEUE, hook="ab" * 16, age_ms=MS_MAX, heard={BOOT: (3, 0)}),
]  # fmt: skip


@pytest.mark.parametrize("word", WHOLE)
def test_a_word_comes_back_as_it_was_said(word: ClusterMessage) -> None:
    assert decode_cluster_message(encode_cluster_message(word)) == word


def test_what_is_not_known_is_ignored() -> None:
    assert decode_cluster_message(b'{"type": "tomorrow", "boot": 7}') is None
    more = json.loads(encode_cluster_message(WHOLE[0])) | {"tomorrow": 1}
    assert decode_cluster_message(json.dumps(more).encode()) == WHOLE[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"boot": "B" * 32}, "boot must be 32 hexadecimal digits"),
        ({"boot": "b" * 31}, "boot must be 32 hexadecimal digits"),
        ({"heard": {"x": [1, 1]}}, "heard must contain boots of 32 hexadecimal digits"),
        ({"heard": {BOOT: [-1, 1]}}, f"heard must be from 0 to {MS_MAX}"),
        ({"heard": {BOOT: [1, MS_MAX + 1]}}, f"heard must be from 0 to {MS_MAX}"),
        ({"heard": {f"{n:032x}": [1, 1] for n in range(MEMBERS_MAX + 1)}}, "heard may have at most 32 entries"),
        ({"ids": [["s", "i"]] * (NAMES_MAX + 1)}, "ids may have at most 32 entries"),
        ({"ids": [["", "i"]]}, "ids must be pairs of source and id, each of 1 to 1024 characters"),
        ({"ids": [["s", "i" * 1025]]}, "ids must be pairs of source and id, each of 1 to 1024 characters"),
        ({"begun_age_ms": -1}, f"begun_age_ms must be from 0 to {MS_MAX}"),
        ({"next_visible_in_ms": MS_MAX + 1}, f"next_visible_in_ms must be from 0 to {MS_MAX}"),
        ({"store": "xyz"}, "store must be a fingerprint of 1 to 128 hexadecimal digits"),
        ({"begun_age_ms": "1"}, "Expected 'int | null', got 'str' - at '$.begun_age_ms'"),
    ],
)
def test_a_cover_that_says_what_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    whole = {"type": "covered", "boot": BOOT, "queue": QUEUE} | change
    with pytest.raises(BadInput) as caught:
        decode_cluster_message(json.dumps(whole).encode())
    assert caught.value.code == "bad_parameter"
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"store": "xyz"}, "store must be a fingerprint of 1 to 128 hexadecimal digits"),
        ({"place": "p" * 65}, "Expected 'str' of length <= 64"),
        ({"begun_age_ms": -1}, f"begun_age_ms must be from 0 to {MS_MAX}"),
        ({"heard": {"x": [1, 1]}}, "heard must contain boots of 32 hexadecimal digits"),
        ({"queues": [QUEUE] * (ROUND_QUEUES_MAX + 1)}, "queues may have at most 250 entries"),
        ({"queues": ["nothing"]}, "nothing"),
    ],
)
def test_a_round_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    whole = {"type": "asked", "boot": BOOT, "store": "ab", "place": "p", "begun_age_ms": 0} | change
    with pytest.raises((BadInput, BadQueueReference), match=said):
        decode_cluster_message(json.dumps(whole).encode())


@pytest.mark.parametrize(
    ("queues", "said"),
    [
        ({QUEUE: {"room": True, "visibility_ms": -1}}, f"visibility_ms must be from 0 to {MS_MAX}"),
        ({QUEUE: {"room": True, "visibility_ms": 1, "store": "-"}}, "store must be a fingerprint"),
        ({f"a/q{n}": None for n in range(QUEUES_MAX + 1)}, "queues may have at most 1000 entries"),
        ({QUEUE: {"visibility_ms": 1}}, "missing required field 'room'"),
    ],
)
def test_an_ability_that_cannot_be_is_refused(queues: dict[str, object], said: str) -> None:
    whole = {"type": "able", "boot": BOOT, "seq": 1, "queues": queues}
    with pytest.raises(BadInput, match=said):
        decode_cluster_message(json.dumps(whole).encode())


@pytest.mark.parametrize(
    "word",
    [
        {"type": "covered", "boot": BOOT, "queue": "nothing"},
        {"type": "sent", "boot": BOOT, "queue": "nothing"},
        {"type": "able", "boot": BOOT, "seq": 1, "queues": {"a//b": None}},
        {"type": "member", "boot": BOOT, "seq": 1, "full": ["a"]},
    ],
)
def test_a_queue_that_is_none_is_refused(word: dict[str, object]) -> None:
    with pytest.raises(BadQueueReference):
        decode_cluster_message(json.dumps(word).encode())


@settings(max_examples=200)
@given(payloads)
def test_whatever_comes_is_a_word_or_refused(data: bytes) -> None:
    """S42: with one of four codes and a short reason that repeats nothing long; a word comes back as it was."""
    word: ClusterMessage | BadInput | None
    try:
        word = decode_cluster_message(data)
    except BadInput as error:
        word = error
    if isinstance(word, BadInput):
        assert word.code in {"bad_json", "bad_parameter", "too_large", "bad_queue_reference"}
        assert len(str(word)) < 300
    elif word is not None:
        assert decode_cluster_message(encode_cluster_message(word)) == word
