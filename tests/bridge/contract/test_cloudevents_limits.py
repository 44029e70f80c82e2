"""CloudEvents at their limits, in and out: sizes, words, and which of two statements counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from bridge.contract.cloudevents import (
    BATCH_TYPE,
    STRUCTURED_TYPE,
    decode_http,
    decode_mqtt,
    decode_nats,
    is_cloudevents,
    media_type,
    percent_decode,
)
from bridge.contract.cloudevents_out import DEFAULT_SOURCE, encode_wake, wake_id
from bridge.contract.errors import BadInput
from bridge.contract.event import (
    EVENT_BYTES_MAX,
    NOT_BEFORE_MS_MAX,
    PAYLOAD_SIZE_MAX,
    REQUEST_BYTES_MAX,
    CloudQueueWorkDetected,
)
from bridge.contract.wire import Wake
from tests.support.cloudevents import (
    encode_batch,
    encode_http_binary,
    encode_mqtt_binary,
    encode_nats_binary,
    encode_structured,
    percent_encode,
)

ATTRIBUTES = {"specversion": "1.0", "type": "CloudQueueWorkDetected", "source": "/shop", "id": "1", "subject": "a/b"}
HEADERS = {f"ce-{name}": value for name, value in ATTRIBUTES.items()}
DATA = {"storage_account": "a", "queue_name": "b"}
EVENT = CloudQueueWorkDetected("a", "b", id="1", source="/shop")
RICH = CloudQueueWorkDetected("a", "b", 3, "é%", "/s p", "noon", 5, "00-1")

NEEDS = "an event needs specversion, type, id and source, each of them text"
NO_JSON = "the body is not one JSON document in UTF-8"
UNNAMED = "neither the subject nor the data names a queue"
TWICE = "an attribute of the event is given twice"


def whole(**changes: Any) -> bytes:
    """Write one event in the JSON format; a change to None leaves the field out."""
    event = {**ATTRIBUTES, **changes}
    return json.dumps({name: value for name, value in event.items() if value is not None}).encode()


def http(media: str, body: bytes, **headers: str) -> list[CloudQueueWorkDetected]:
    """Decode a request of this content type."""
    return decode_http({"Content-Type": media, **headers}, body)


@pytest.mark.parametrize(
    ("decode", "code", "words"),
    [
        (lambda: http("application/cloudevents+xml", b""), "unsupported_media_type",
         "of the formats of CloudEvents only JSON is read here"),
        (lambda: decode_mqtt("application/cloudevents+xml", None, b""), "unsupported_media_type",
         "of the formats of CloudEvents only JSON is read here"),
        (lambda: http(BATCH_TYPE, b"{}"), "bad_trigger", "a batch is an array of events"),
        (lambda: http(BATCH_TYPE, b"["), "bad_json", NO_JSON),
        (lambda: http(STRUCTURED_TYPE, b"{}"), "bad_trigger", NEEDS),
        (lambda: http(STRUCTURED_TYPE, b"{"), "bad_json", NO_JSON),
        *((lambda name=name: decode_http({k: v for k, v in HEADERS.items() if k != f"ce-{name}"}, b""), "bad_trigger",
           NEEDS) for name in ("type", "id", "source")),
        (lambda: http(STRUCTURED_TYPE, whole(data=1, data_base64="e30=")), "bad_trigger",
         "an event has data or data_base64, not both"),
        *((lambda version=version: http(STRUCTURED_TYPE, whole(specversion=version)), "bad_trigger",
           "only specversion 1.0 is read here") for version in ("1", "1.1", "1.01", "0.3", "")),
        (lambda: http(STRUCTURED_TYPE, whole(type="x")), "bad_trigger",
         "only events of the type CloudQueueWorkDetected are triggers"),
        *((lambda name=name: http(STRUCTURED_TYPE, whole(**{name: ""})), "bad_trigger",
           "id and source of an event are not empty") for name in ("id", "source")),
        (lambda: http(STRUCTURED_TYPE, whole(subject=None, data="x", datacontenttype="text/plain")), "bad_trigger",
         "the data of a trigger is JSON"),
        (lambda: http(STRUCTURED_TYPE, whole(subject=None, data="x")), "bad_trigger",
         "the data of an event is a trigger object"),
        (lambda: http(STRUCTURED_TYPE, whole(subject=None, data={})), "bad_trigger", UNNAMED),
        (lambda: http(STRUCTURED_TYPE, whole(subject=None)), "bad_trigger", UNNAMED),
        (lambda: http(STRUCTURED_TYPE, whole(subject=None)[:-1] + b',"data":null}'), "bad_trigger", UNNAMED),
        (lambda: http(STRUCTURED_TYPE, whole(subject=None, data_base64="Ww==")), "bad_json", NO_JSON),
        (lambda: http(STRUCTURED_TYPE, whole(data={**DATA, "payload_size": "x"})), "bad_trigger",
         "the data of an event is a trigger object"),
        (lambda: http(STRUCTURED_TYPE, whole(subject="a/c", data=DATA)), "bad_trigger",
         "subject and data name two different queues"),
        (lambda: decode_http({**HEADERS, "CE-Extra": "1", "ce-extra": "1"}, b""), "bad_trigger", TWICE),
        (lambda: decode_http({"content-type": "x", "Content-Type": "x"}, b""), "bad_trigger", TWICE),
        (lambda: decode_http({**HEADERS, "ce-id": "%ff"}, b""), "bad_trigger",
         "an attribute of the event is not UTF-8"),
    ],
)  # fmt: skip
def test_each_fault_has_its_words(decode: Callable[[], object], code: str, words: str) -> None:
    """Which are ours; nothing that came in is repeated."""
    with pytest.raises(BadInput) as refusal:
        decode()
    assert (refusal.value.code, str(refusal.value)) == (code, words)


def test_sizes_at_their_limits() -> None:
    """One event is of 64 KiB with its attributes, a batch of a MiB and a thousand; one more of each is refused."""
    attributes = sum(len(name) - len("ce-") + len(value) for name, value in HEADERS.items())
    padded = b'{"x":"'
    alone = [
        lambda size: http(STRUCTURED_TYPE, whole().ljust(size)),
        lambda size: http(BATCH_TYPE, b"[" + (whole()[:-1] + b',"x":"').ljust(size - 2, b"x") + b'"}]'),
        lambda size: decode_http(HEADERS, padded.ljust(size - attributes - 2, b"x") + b'"}'),
        lambda size: decode_mqtt(None, ATTRIBUTES, padded.ljust(size - attributes - 2, b"x") + b'"}'),
    ]
    for decode in alone:
        assert decode(EVENT_BYTES_MAX) == [EVENT]
        with pytest.raises(BadInput, match=r"^one event is at most 65536 bytes$") as refusal:
            decode(EVENT_BYTES_MAX + 1)
        assert refusal.value.code == "too_large"
    for before in (b"\x0b", b"X"):
        with pytest.raises(BadInput, match=r"^one event is at most 65536 bytes$"):
            decode_http({}, before + b"[" + whole().ljust(EVENT_BYTES_MAX))
    many = b"[" + b",".join([whole()] * 1000) + b"]"
    assert http(BATCH_TYPE, many.ljust(REQUEST_BYTES_MAX)) == [EVENT] * 1000
    for body, code, words in (
        (many.ljust(REQUEST_BYTES_MAX + 1), "too_large", "a batch of events is at most 1048576 bytes"),
        (many[:-1] + b"," + whole() + b"]", "too_many_items", "at most 1000 triggers a request"),
    ):
        with pytest.raises(BadInput, match=f"^{re.escape(words)}$") as refusal:
            http(BATCH_TYPE, body)
        assert refusal.value.code == code


@pytest.mark.parametrize(
    ("media", "type_"),
    [
        (None, ""), ("", ""), ("Text/JSON", "text/json"), (" a/b\t; x=y;z", "a/b"), ("a/b;", "a/b"), ("x a", "x a"),
        ("Xa/bX", "xa/bx"), ("\u00a0a/b", "\u00a0a/b"), ("\na/b\f", "\na/b\f"),
    ],
)  # fmt: skip
def test_a_content_type_is_read_without_its_parameters(media: str | None, type_: str) -> None:
    """In lower case, and without the blanks and tabs around it; nothing else around it is forgiven."""
    assert media_type(media) == type_
    assert is_cloudevents(media) is False
    for event in ("Application/CloudEvents", STRUCTURED_TYPE + "; x", BATCH_TYPE, "application/cloudevents+xml"):
        assert is_cloudevents(event)


@pytest.mark.parametrize("version", ["1.0", "1.0.2", "1.0."])
def test_corrections_of_the_specification_are_read(version: str) -> None:
    """They change nothing in an event."""
    assert http(STRUCTURED_TYPE, whole(specversion=version)) == [EVENT]


@pytest.mark.parametrize(
    "media",
    ["application/json", "text/json", "Application/Vnd.Shop+JSON; x=y", "text/x+json", "", "application/a.b-c+json"],
)
def test_data_of_each_json_type_is_read(media: str) -> None:
    """And of no other: that is the sender's own, as far as the queue is named."""
    body = json.dumps({**DATA, "payload_size": 9}).encode()
    assert decode_http({**HEADERS, "content-type": media}, body)[0].payload_size == 9
    assert decode_mqtt(media, ATTRIBUTES, body)[0].payload_size == 9
    for other in ("application/jsonx", "image/json", "application/+json", "text/plain", "xapplication/json"):
        assert decode_http({**HEADERS, "content-type": other}, body)[0].payload_size == 1
        assert decode_mqtt(other, ATTRIBUTES, body)[0].payload_size == 1


def test_attributes_count_before_what_the_data_says() -> None:
    """Of a time and a trace context that stand in both; those of the data count where they stand alone."""
    data = {**DATA, "time": "noon", "traceparent": "00-0", "not_before_ms": 5, "payload_size": 3}
    inner = CloudQueueWorkDetected("a", "b", 3, "1", "/shop", "noon", 5, "00-0")
    outer = CloudQueueWorkDetected("a", "b", 3, "1", "/shop", "dawn", 5, "00-1")
    said = {"time": "dawn", "traceparent": "00-1"}
    for kind in (None, "application/json"):
        assert http(STRUCTURED_TYPE, whole(data=data, datacontenttype=kind)) == [inner]
        assert http(STRUCTURED_TYPE, whole(data=data, datacontenttype=kind, **said)) == [outer]
    body = json.dumps(data).encode()
    assert decode_nats(HEADERS, body) == [inner]
    assert decode_nats({**HEADERS, **{f"ce-{name}": value for name, value in said.items()}}, body) == [outer]


@pytest.mark.parametrize(
    ("said", "size", "due"),
    [
        ({"payload_size": 1, "not_before_ms": 0}, 1, 0),
        ({"payload_size": 2, "not_before_ms": 1}, 2, 1),
        ({"payload_size": PAYLOAD_SIZE_MAX, "not_before_ms": NOT_BEFORE_MS_MAX}, PAYLOAD_SIZE_MAX, NOT_BEFORE_MS_MAX),
        ({"payload_size": PAYLOAD_SIZE_MAX + 1, "not_before_ms": NOT_BEFORE_MS_MAX + 1}, 1, 0),
        ({"payload_size": 0, "not_before_ms": -1}, 1, 0),
        ({"time": "noon", "traceparent": "00-0"}, 1, 0),
        ({"storage_account": None, "queue_name": None, "payload_size": 7}, 7, 0),
    ],
)
def test_hints_of_data_that_names_no_queue(said: dict[str, Any], size: int, due: int) -> None:
    """They count within their limits, and are held against nobody."""
    found = http(STRUCTURED_TYPE, whole(data=said))
    assert found == [CloudQueueWorkDetected("a", "b", size, "1", "/shop", not_before_ms=due)]


@pytest.mark.parametrize("name", ["storage_account", "queue_name"])
@pytest.mark.parametrize("rest", [{}, {"payload_size": "x"}])
def test_data_that_names_half_a_queue_is_meant_and_wrong(name: str, rest: dict[str, Any]) -> None:
    """Though the subject names one."""
    with pytest.raises(BadInput):
        http(STRUCTURED_TYPE, whole(data={name: DATA[name], **rest}))


def test_the_data_alone_may_name_the_queue() -> None:
    """With and without a type of its own, as JSON or base64 of it; null beside base64 is nothing."""
    for data in ({"data": DATA}, {"data_base64": "eyJzdG9yYWdlX2FjY291bnQiOiJhIiwicXVldWVfbmFtZSI6ImIifQ=="}):
        assert http(STRUCTURED_TYPE, whole(subject=None, **data)) == [EVENT]
    raw = whole(subject=None)[:-1] + b',"data":null,"data_base64":"%s"}'
    assert http(STRUCTURED_TYPE, raw % b"eyJzdG9yYWdlX2FjY291bnQiOiJhIiwicXVldWVfbmFtZSI6ImIifQ==") == [EVENT]
    assert http(STRUCTURED_TYPE, raw.replace(b'"data":null', b'"subject":"a/b","data":null') % b"") == [EVENT]


def test_how_an_event_without_a_content_type_is_known() -> None:
    """By the word in it, alone or in an array, blanks or none before; all else is a plain trigger."""
    for decode in (decode_nats, lambda headers, payload, *topic: decode_mqtt(None, headers, payload, *topic)):
        for blank in (b"", b" \t\r\n"):
            assert decode(None, blank + whole()) == [EVENT]
            assert decode(None, blank + b"[" + whole() + b"]") == [EVENT]
            assert decode({"x": "y"}, blank + b"[" + whole(subject=None) + b"]", "a/b") == [EVENT]
            assert decode({"x": "y"}, blank + whole(subject="an order"), "a/b") == [EVENT]
            assert decode(None, blank + json.dumps(DATA).encode(), "c/d") == [CloudQueueWorkDetected("a", "b")]
    assert decode_http({}, whole()) == [EVENT]
    assert decode_http({"content-type": "application/json"}, b"[" + whole() + b"]") == [EVENT]


def test_nats_has_two_places_for_the_type_of_the_data() -> None:
    """The attribute counts before the header; an empty one does not."""
    body = json.dumps({**DATA, "payload_size": 9}).encode()
    for attribute, header, size in (
        ("application/json", "text/plain", 9),
        ("text/plain", "application/json", 1),
        ("", "text/plain", 1),
        ("", "application/json", 9),
        ("text/plain", "", 1),
    ):
        named = {**HEADERS, "ce-datacontenttype": attribute, "Content-Type": header}
        assert decode_nats(named, body)[0].payload_size == size
    assert decode_nats({name.upper(): value for name, value in HEADERS.items()}, b"") == [EVENT]


def test_headers_that_are_no_attributes_may_stand_twice() -> None:
    """A proxy's own are nobody's business here; what only looks like a prefix is no attribute."""
    assert decode_http({**HEADERS, "ce-": "%ff", "type": "x", "subject": "c/d", "source": "x"}, b"") == [EVENT]
    assert decode_http({**HEADERS, "Via": "x", "via": "y", "ce-": "z", "x-ce-id": "2", "id": "3"}, b"") == [EVENT]
    assert decode_mqtt(None, {"SpecVersion": "1.0", **{k: v for k, v in ATTRIBUTES.items() if k != "specversion"}}, b"")
    assert decode_mqtt(None, {"ce-specversion": "1.0"}, json.dumps(DATA).encode()) == [CloudQueueWorkDetected("a", "b")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""), ('"', '"'), ('""', ""), ('"a', '"a'), ('a"', 'a"'), ('"a"', "a"), ('"\\\\\\""', '\\"'),
        ("%41%4a%4A", "AJJ"),
        ("%c3%A9", "é"), ("é%41", "éA"), ("é", "é"), ("%4", "%4"), ("%4g", "%4g"), ('"%22"', '"'), ("a\\b", "a\\b"),
    ],
)  # fmt: skip
def test_a_headers_value_is_decoded_once(value: str, text: str) -> None:
    """Quotes only in pairs, escapes only where they are whole."""
    assert percent_decode(value) == text


def test_what_is_written_is_by_the_letter() -> None:
    """Every field in every mode, those that are not said left out."""
    attributes = {
        "specversion": "1.0", "type": "CloudQueueWorkDetected", "source": "/s p", "id": "é%", "subject": "a/b",
        "time": "noon", "traceparent": "00-1",
    }  # fmt: skip
    data = {"storage_account": "a", "queue_name": "b", "payload_size": 3, "not_before_ms": 5}
    json_type = "application/json"
    event = {**attributes, "datacontenttype": json_type, "data": data}
    assert json.loads(encode_structured(RICH)) == event
    assert json.loads(encode_batch([RICH, RICH])) == [event, event]
    headers = {f"ce-{name}": value for name, value in attributes.items()} | {
        "ce-id": "%C3%A9%25",
        "ce-source": "/s%20p",
    }
    for encoded, expected in (
        (encode_http_binary(RICH), headers),
        (encode_nats_binary(RICH), {**headers, "ce-datacontenttype": json_type}),
        (encode_mqtt_binary(RICH), attributes),
    ):
        assert (encoded.content_type, encoded.headers, json.loads(encoded.body)) == (json_type, expected, data)
    least = json.loads(encode_structured(CloudQueueWorkDetected("a", "b", id="1")))
    assert least == {
        **ATTRIBUTES,
        "source": DEFAULT_SOURCE,
        "datacontenttype": json_type,
        "data": {**DATA, "payload_size": 1},
    }
    for unnamed in (CloudQueueWorkDetected("a", "b"), CloudQueueWorkDetected("a", "b", id="")):
        with pytest.raises(ValueError, match="a trigger needs an id to be a CloudEvent"):
            encode_batch([unnamed])


def test_a_wake_is_written_by_the_letter() -> None:
    """With a time and a trace context where there are some, and the frame itself as its data."""
    wake = Wake("a/b", "b" * 32, 7, "due", 3, 1)
    frame = {"type": "wake", "queue": "a/b", "boot": "b" * 32, "gen": 7, "reason": "due", "size": 3, "age_ms": 1}
    event = {
        "specversion": "1.0", "type": "CloudQueueWake", "source": "urn:queuebell", "id": "b" * 32 + ":7",
        "subject": "a/b", "datacontenttype": "application/json", "data": frame,
    }  # fmt: skip
    encoded = encode_wake(wake)
    assert (encoded.content_type, encoded.headers, json.loads(encoded.body)) == (STRUCTURED_TYPE, {}, event)
    assert wake_id(wake) == event["id"]
    traced = Wake("a/b", "b" * 32, 7, "due", 3, 1, "00-1")
    assert json.loads(encode_wake(traced, source="/me", time="noon").body) == {
        **event, "source": "/me", "time": "noon", "traceparent": "00-1", "data": {**frame, "traceparent": "00-1"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "encoded"),
    [("az!~#", "az!~#"), (' "%\x7f', "%20%22%25%7F"), ("é\n", "%C3%A9%0A"), ("", "")],
)
def test_what_is_encoded_in_a_header(text: str, encoded: str) -> None:
    """Space, quote, percent, and all but printable ASCII."""
    assert percent_encode(text) == encoded
