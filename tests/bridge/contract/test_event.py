"""A trigger: what it may say, how many come at once, and how a delay is rounded."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from bridge.contract.errors import BadInput
from bridge.contract.event import (
    EVENT_BYTES_MAX,
    EVENTS_MAX,
    NOT_BEFORE_MS_MAX,
    PAYLOAD_SIZE_MAX,
    REQUEST_BYTES_MAX,
    TEXT_MAX,
    CloudQueueWorkDetected,
    check_event,
    decode_events,
    encode_event,
    encode_events,
    rounded_up,
)
from bridge.contract.sources import WAKE_SOURCES, WORK, merged_size

EVENT = CloudQueueWorkDetected("billing", "orders")
SAYS_LEAST = b'{"storage_account":"billing","queue_name":"orders"}'
TEXTS = ("id", "source", "time", "traceparent")


@pytest.mark.parametrize(
    "said",
    [
        {"payload_size": 1}, {"payload_size": PAYLOAD_SIZE_MAX},
        {"not_before_ms": 0}, {"not_before_ms": NOT_BEFORE_MS_MAX},
        *({name: "é" * TEXT_MAX} for name in TEXTS), *({name: ""} for name in TEXTS),
    ],
)  # fmt: skip
def test_what_is_within_its_limits_comes_back_as_it_was(said: dict[str, Any]) -> None:
    """Both ends of every number, the longest text of every name."""
    event = msgspec.structs.replace(EVENT, **said)
    assert check_event(event) is event
    assert decode_events(encode_event(event)) == [event]
    assert decode_events(encode_events([EVENT, event])) == [EVENT, event]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        *(({"payload_size": n}, f"payload_size is a number of messages from 1 to {PAYLOAD_SIZE_MAX}")
          for n in (0, PAYLOAD_SIZE_MAX + 1, True, 1.5)),
        *(({"not_before_ms": n}, f"not_before_ms is from 0 to {NOT_BEFORE_MS_MAX}")
          for n in (-1, NOT_BEFORE_MS_MAX + 1, False, 1.5)),
        *(({name: text}, f"{name} is text of at most {TEXT_MAX} characters")
          for name in TEXTS for text in ("x" * (TEXT_MAX + 1), 7)),
        *(({name: text}, f"{name} holds a control character") for name in TEXTS for text in ("a\nb", "\x1b[2J", "\0")),
    ],
)  # fmt: skip
def test_what_is_beyond_is_refused_by_name(said: dict[str, Any], words: str) -> None:
    """Of an event made in Python as of one that came in; a number is never a truth value."""
    event = msgspec.structs.replace(EVENT, **said)
    with pytest.raises(BadInput) as refusal:
        check_event(event)
    assert (refusal.value.code, str(refusal.value)) == ("bad_trigger", words)
    with pytest.raises(BadInput) as refusal:
        decode_events(encode_events([EVENT, event]))
    assert refusal.value.code == "bad_trigger"


@pytest.mark.parametrize(("before", "after"), [("", ""), (" \t\r\n", ""), ("[", "]"), (" \t\r\n[", "]")])
def test_one_trigger_is_of_64_kib_at_most(before: str, after: str) -> None:
    """Alone, where the blanks around it count, or among others."""
    room = EVENT_BYTES_MAX - (0 if after else len(before))
    for size in (room, room + 1):
        one = (SAYS_LEAST[:-1] + b',"x":"').ljust(size - 2, b"x") + b'"}'
        data = before.encode() + one + after.encode()
        if size == room:
            assert decode_events(data) == [EVENT]
            continue
        with pytest.raises(BadInput, match=r"^one trigger is at most 65536 bytes$") as refusal:
            decode_events(data)
        assert refusal.value.code == "too_large"


def test_a_request_holds_a_thousand_triggers_and_a_mib() -> None:
    """The most is taken, one more of either is refused, and none of the rest is."""
    whole = b"[" + b",".join([SAYS_LEAST] * EVENTS_MAX) + b"]"
    assert decode_events(whole) == [EVENT] * 1000
    assert decode_events(whole.ljust(REQUEST_BYTES_MAX)) == [EVENT] * 1000
    assert decode_events(b"[]") == []
    for data, code, words in (
        (whole[:-1] + b"," + SAYS_LEAST + b"]", "too_many_items", "at most 1000 triggers a request"),
        (whole.ljust(REQUEST_BYTES_MAX + 1), "too_large", "a trigger request is at most 1048576 bytes"),
    ):
        with pytest.raises(BadInput, match=f"^{re.escape(words)}$") as refusal:
            decode_events(data)
        assert refusal.value.code == code


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"{}", "bad_trigger", "Object missing required field 'storage_account'"),
        (b"[{}]", "bad_trigger", "Object missing required field 'storage_account' - at '$[0]'"),
        (b"7", "bad_trigger", "Expected 'object', got 'int'"),
        (b'{"storage_account":7} x', "bad_json", "the body is not one JSON document in UTF-8"),
        (b'{"storage_account":"a","queue_name":"q"} x', "bad_json", "the body is not one JSON document in UTF-8"),
        (b"[" + SAYS_LEAST, "bad_json", "the body is not one JSON document in UTF-8"),
        (b"", "bad_json", "the body is not one JSON document in UTF-8"),
        (SAYS_LEAST[:-1] + b',"x":"\xff"}', "bad_json", "the body is not one JSON document in UTF-8"),
        (SAYS_LEAST[:-1] + b',"x":' + b"[" * 80 + b"]" * 80 + b"}", "bad_json", "JSON nests at most 64 deep"),
        (b"[" + SAYS_LEAST[:-1] + b',"x":' + b"[" * 80 + b"]" * 80 + b"}]", "bad_json", "JSON nests at most 64 deep"),
    ],
)  # fmt: skip
def test_a_fault_of_form_is_told_from_one_of_content(data: bytes, code: str, words: str) -> None:
    """With words that are ours, and nothing of what came in."""
    with pytest.raises(BadInput) as refusal:
        decode_events(data)
    assert (refusal.value.code, str(refusal.value)) == (code, words)


@pytest.mark.parametrize("before", [b"\x0b", b"X"])
def test_only_blanks_of_json_stand_before_an_array(before: bytes) -> None:
    """What comes after anything else is held to the size of one trigger."""
    with pytest.raises(BadInput, match=r"^one trigger is at most 65536 bytes$"):
        decode_events(before + b"[" + b" " * EVENT_BYTES_MAX)


def test_a_trigger_of_other_letters_is_read() -> None:
    """UTF-8 passes, in what is read and in what is not."""
    data = json.dumps({"storage_account": "a", "queue_name": "q", "id": "é", "x": "日本"}, ensure_ascii=False)
    assert decode_events(data.encode()) == [CloudQueueWorkDetected("a", "q", id="é")]


@pytest.mark.parametrize(
    ("delay_ms", "resolution_ms", "expected"),
    [
        (0, 1000, 0), (-1, 1000, 0), (1, 0, 2), (1, 1000, 1002), (10_000, 1000, 11_001), (10_001, 0, 10_003),
        (NOT_BEFORE_MS_MAX - 1, 0, NOT_BEFORE_MS_MAX), (NOT_BEFORE_MS_MAX, 1000, NOT_BEFORE_MS_MAX),
    ],
)  # fmt: skip
def test_a_delay_is_rounded_up(delay_ms: int, resolution_ms: int, expected: int) -> None:
    """By the store's resolution and a ten-thousandth of itself: one tick early is a loss; never beyond the most."""
    assert rounded_up(delay_ms, resolution_ms) == expected


@pytest.mark.parametrize("reason", WAKE_SOURCES)
def test_merged_hints_add_up_where_work_was_announced(reason: str) -> None:
    """And are the larger one where somebody only says again that work waits; a million at most."""
    adds = reason in {"trigger", "due", "lease"}
    assert (reason in WORK) is adds
    assert merged_size(3, 2, reason) == (5 if adds else 3)
    assert merged_size(2, 3, reason) == (5 if adds else 3)
    assert merged_size(PAYLOAD_SIZE_MAX, 1, reason) == PAYLOAD_SIZE_MAX
    assert merged_size(1, PAYLOAD_SIZE_MAX + 1, reason) == PAYLOAD_SIZE_MAX
