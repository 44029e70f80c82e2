"""CloudEvents 1.0 in and out, checked against the official SDK (B13; S5, S8, S21)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from bridge.contract.cloudevents_out import encode_wake, wake_id
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
    encode_events,
    rounded_up,
)
from bridge.contract.sources import WAKE_SOURCES, WORK, merged_size
from bridge.contract.wire import Wake
from tests.support.cloudevents import (
    encode_batch,
    encode_structured,
    percent_encode,
)

DATA = {"storage_account": "billing", "queue_name": "orders", "payload_size": 3}
ATTRIBUTES = {
    "specversion": "1.0",
    "type": "CloudQueueWorkDetected",
    "source": "/shop",
    "id": "1",
    "subject": "billing/orders",
}
TRIGGER = CloudQueueWorkDetected("billing", "orders", 3, id="1", source="/shop")


def structured(**changes: Any) -> bytes:
    """One event in the JSON format; a change to None leaves the field out."""
    event = {**ATTRIBUTES, "data": DATA, **changes}
    return json.dumps({name: value for name, value in event.items() if value is not None}).encode()


def binary(**changes: str | None) -> dict[str, str]:
    """Headers of a binary event."""
    headers = {f"ce-{name}": value for name, value in {**ATTRIBUTES, **changes}.items() if value is not None}
    return {"Content-Type": "application/json", **headers}


BODY = json.dumps(DATA).encode()


# -- the official SDK ------------------------------------------------------------------------------------------------


# -- there and back --------------------------------------------------------------------------------------------------


# -- bindings --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "id_"),
    [("Euro%20%E2%82%AC", "Euro €"), ("%2541", "%41"), ('"a \\"b\\""', 'a "b"'), ("100%", "100%"), ("€", "€")],
)
def test_values_of_headers_are_decoded_once(value: str, id_: str) -> None:
    """One round, after quotes are taken off; what is no escape stands for itself."""
    assert decode_http(binary(id=value), BODY)[0].id == id_


OWN_DATA: dict[str, tuple[str | None, bytes]] = {
    "none": (None, b""),
    "text": ("text/plain; charset=utf-8", b"order 17"),
    "text that says it is json": ("application/json", b"order 17"),
    "bytes": ("application/octet-stream", bytes(range(256))),
    "bytes without a type": (None, b"\xff\xfe"),
    "image": ("image/png", b"\x89PNG\r\n"),
    "xml": ("application/xml", b"<order/>"),
    "object": ("application/json", b'{"order": 17}'),
    "object with a size of its own": ("application/json", b'{"payload_size": "12 KiB", "time": 7}'),
    "object out of limits": ("application/json", b'{"payload_size": 0, "not_before_ms": -1}'),
    "array": ("application/json", b"[1, 2]"),
    "number": ("application/vnd.shop+json", b"17"),
    "string": ("application/json", b'"order 17"'),
    "null": ("application/json", b"null"),
    "deep": ("application/json", b"[" * 500),
    "cut off": ("application/json", b'{"storage_account": "other", '),
}
"""Data that is no trigger object: (content type, bytes)."""
NAMED_BY = ["subject", "topic", "topic beside another subject"]


def ways(media: str | None, data: bytes, named_by: str) -> dict[str, Any]:
    """Write one event every way there is; each is called with the decoder's rest."""
    subject = {"subject": "billing/orders", "topic": None, "topic beside another subject": "order 17"}[named_by]
    topic = () if named_by == "subject" else ("billing/orders",)
    attributes = {name: value for name, value in {**ATTRIBUTES, "subject": subject}.items() if value is not None}
    headers = {f"ce-{name}": value for name, value in attributes.items()}
    typed = {} if media is None else {"content-type": media}
    kind = {} if media is None else {"datacontenttype": media}
    whole = json.dumps({**attributes, **kind, "data_base64": base64.b64encode(data).decode()}).encode()
    written = {
        "nats binary": lambda: decode_nats({**headers, **typed}, data, *topic),
        "nats structured": lambda: decode_nats({"content-type": STRUCTURED_TYPE}, whole, *topic),
        "nats bare": lambda: decode_nats(None, whole, *topic),
        "nats batch": lambda: decode_nats({"content-type": BATCH_TYPE}, b"[" + whole + b"]", *topic),
        "mqtt binary": lambda: decode_mqtt(media, attributes, data, *topic),
        "mqtt structured": lambda: decode_mqtt(STRUCTURED_TYPE, None, whole, *topic),
        "mqtt 3.1.1": lambda: decode_mqtt(None, None, whole, *topic),
    }
    if not topic:
        written |= {
            "http binary": lambda: decode_http({**headers, **typed}, data),
            "http structured": lambda: decode_http({"content-type": STRUCTURED_TYPE}, whole),
            "http batch": lambda: decode_http({"content-type": BATCH_TYPE}, b"[" + whole + b"]"),
        }
    return written


@pytest.mark.parametrize("data", OWN_DATA)
@pytest.mark.parametrize("named_by", NAMED_BY)
def test_an_event_that_names_its_queue_rings_whatever_its_data_is(data: str, named_by: str) -> None:
    """By the subject, or by the topic it came on; on every bus, in every mode: one trigger of size 1."""
    for way, decode in ways(*OWN_DATA[data], named_by).items():
        assert decode() == [CloudQueueWorkDetected("billing", "orders", id="1", source="/shop")], way


@pytest.mark.parametrize("subject", ["billing/orders", None])
def test_what_names_two_queues_is_refused_on_a_topic_too(subject: str | None) -> None:
    """Which of them was meant nobody can know."""
    attributes = {name: value for name, value in {**ATTRIBUTES, "subject": subject}.items() if value is not None}
    with pytest.raises(BadInput, match="two different queues"):
        decode_mqtt(None, attributes, json.dumps({**DATA, "queue_name": "other"}).encode(), "billing/orders")


# -- faults ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"specversion": "0.3"}, "bad_trigger"),
        ({"specversion": None}, "bad_trigger"),
        ({"type": "com.example.other"}, "bad_trigger"),
        ({"type": None}, "bad_trigger"),
        ({"id": ""}, "bad_trigger"),
        ({"id": None}, "bad_trigger"),
        ({"id": 7}, "bad_trigger"),
        ({"id": "x\r\ny"}, "bad_trigger"),
        ({"id": "x" * 1025}, "bad_trigger"),
        ({"source": ""}, "bad_trigger"),
        ({"source": None}, "bad_trigger"),
        ({"traceparent": "a\nb"}, "bad_trigger"),
        ({"subject": "billing/other"}, "bad_trigger"),
        ({"subject": "billing/*", "data": None}, "bad_queue_reference"),
        ({"subject": "a/b/c", "data": None}, "bad_queue_reference"),
        ({"subject": None, "data": None}, "bad_trigger"),
        ({"data": {**DATA, "queue_name": None}}, "bad_queue_reference"),
        ({"data": {**DATA, "queue_name": "o>"}}, "bad_queue_reference"),
        ({"data": {**DATA, "payload_size": 0}}, "bad_trigger"),
        ({"data": {**DATA, "payload_size": True}}, "bad_trigger"),
        ({"data": {**DATA, "not_before_ms": -1}}, "bad_trigger"),
        ({"data": "text", "subject": None}, "bad_trigger"),
        ({"data": [DATA], "subject": None}, "bad_trigger"),
        ({"data_base64": "e30="}, "bad_trigger"),
        ({"data": None, "data_base64": "!"}, "bad_trigger"),
        ({"data": None, "data_base64": "eHg=", "subject": None}, "bad_json"),
        ({"datacontenttype": "text/plain", "subject": None}, "bad_trigger"),
        ({"data": {**DATA, "filler": "x" * 65_536}}, "too_large"),
    ],
)
def test_s8_faults_of_an_event(changes: dict[str, Any], code: str) -> None:
    """The same in a batch, where one refuses all; nothing that came in is repeated."""
    one = structured(**changes)
    for body, media in ((one, STRUCTURED_TYPE), (b"[" + structured() + b"," + one + b"]", BATCH_TYPE)):
        with pytest.raises(BadInput) as caught:
            decode_http({"content-type": media}, body)
        assert caught.value.code == code
        assert "other" not in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        (binary(id="%C0%A0"), BODY, "bad_trigger"),
        (binary(id="%FF"), BODY, "bad_trigger"),
        (binary(id="\udcff"), BODY, "bad_trigger"),
        (binary(id="%0d%0ax"), BODY, "bad_trigger"),
        (binary(id=None), BODY, "bad_trigger"),
        (binary(subject="billing/other"), BODY, "bad_trigger"),
        (binary(subject=None), b"{", "bad_json"),
        (binary(subject=None), b"[" * 500, "bad_json"),
        (binary(), BODY + b" " * 65_536, "too_large"),
        ({**binary(subject=None), "Content-Type": "application/octet-stream"}, BODY, "bad_trigger"),
        ({**binary(), "CE-Id": "2"}, BODY, "bad_trigger"),
        ({"content-type": STRUCTURED_TYPE}, b"", "bad_json"),
        ({"content-type": STRUCTURED_TYPE}, b'{"id": "\xff"}', "bad_json"),
        ({"content-type": STRUCTURED_TYPE}, b"[]", "bad_trigger"),
        ({"content-type": STRUCTURED_TYPE}, b'{"x":' * 100 + b"1" + b"}" * 100, "bad_json"),
        ({"content-type": BATCH_TYPE}, b"{}", "bad_trigger"),
        ({"content-type": BATCH_TYPE}, b"[1]", "bad_trigger"),
        ({"content-type": BATCH_TYPE}, b"[", "bad_json"),
        ({"content-type": BATCH_TYPE}, b"[" + b",".join([b"{}"] * 1001) + b"]", "too_many_items"),
        ({"content-type": BATCH_TYPE}, b"[" + b" " * 1024 * 1024 + b"]", "too_large"),
        ({"content-type": "application/cloudevents+avro"}, b"x", "unsupported_media_type"),
        ({"content-type": "application/cloudevents-batch+xml"}, b"x", "unsupported_media_type"),
    ],
)
def test_s8_faults_of_form(headers: dict[str, str], body: bytes, code: str) -> None:
    """Encodings, sizes, depths, formats and attributes given twice."""
    with pytest.raises(BadInput) as caught:
        decode_http(headers, body)
    assert caught.value.code == code


def test_a_thousand_events_are_a_batch() -> None:
    """The limit itself passes."""
    assert len(decode_http({"content-type": BATCH_TYPE}, encode_batch([TRIGGER] * 1000))) == 1000


def test_an_event_without_an_id_is_not_written() -> None:
    """An id names one publish (P5) and cannot be made up by the encoder."""
    with pytest.raises(ValueError, match="id"):
        encode_structured(CloudQueueWorkDetected("a", "b"))


@given(st.binary(max_size=200), st.sampled_from([STRUCTURED_TYPE, BATCH_TYPE, "application/json", ""]))
def test_no_input_raises_anything_else(body: bytes, media: str) -> None:
    """Whatever comes in, the answer is an event or a `BadInput`."""
    for headers in ({"content-type": media}, {**binary(), "Content-Type": media}):
        for decode in (decode_http, decode_nats, lambda h, b: decode_mqtt(media, h, b)):
            try:
                decode(headers, body)
            except BadInput:
                pass


ATTRIBUTES_CLOUDEVENTS_LIMITS = {
    "specversion": "1.0",
    "type": "CloudQueueWorkDetected",
    "source": "/shop",
    "id": "1",
    "subject": "a/b",
}
HEADERS = {f"ce-{name}": value for name, value in ATTRIBUTES_CLOUDEVENTS_LIMITS.items()}
DATA_CLOUDEVENTS_LIMITS = {"storage_account": "a", "queue_name": "b"}
EVENT = CloudQueueWorkDetected("a", "b", id="1", source="/shop")
NEEDS = "an event needs specversion, type, id and source, each of them text"
NO_JSON = "the body is not one JSON document in UTF-8"
UNNAMED = "neither the subject nor the data names a queue"
TWICE = "an attribute of the event is given twice"


def whole(**changes: Any) -> bytes:
    """Write one event in the JSON format; a change to None leaves the field out."""
    event = {**ATTRIBUTES_CLOUDEVENTS_LIMITS, **changes}
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
        (lambda: http(STRUCTURED_TYPE, whole(data={**DATA_CLOUDEVENTS_LIMITS, "payload_size": "x"})), "bad_trigger",
         "the data of an event is a trigger object"),
        (lambda: http(STRUCTURED_TYPE, whole(subject="a/c", data=DATA_CLOUDEVENTS_LIMITS)), "bad_trigger",
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
        lambda size: decode_mqtt(
            None, ATTRIBUTES_CLOUDEVENTS_LIMITS, padded.ljust(size - attributes - 2, b"x") + b'"}'
        ),
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


@pytest.mark.parametrize("name", ["storage_account", "queue_name"])
@pytest.mark.parametrize("rest", [{}, {"payload_size": "x"}])
def test_data_that_names_half_a_queue_is_meant_and_wrong(name: str, rest: dict[str, Any]) -> None:
    """Though the subject names one."""
    with pytest.raises(BadInput):
        http(STRUCTURED_TYPE, whole(data={name: DATA_CLOUDEVENTS_LIMITS[name], **rest}))


def test_how_an_event_without_a_content_type_is_known() -> None:
    """By the word in it, alone or in an array, blanks or none before; all else is a plain trigger."""
    for decode in (decode_nats, lambda headers, payload, *topic: decode_mqtt(None, headers, payload, *topic)):
        for blank in (b"", b" \t\r\n"):
            assert decode(None, blank + whole()) == [EVENT]
            assert decode(None, blank + b"[" + whole() + b"]") == [EVENT]
            assert decode({"x": "y"}, blank + b"[" + whole(subject=None) + b"]", "a/b") == [EVENT]
            assert decode({"x": "y"}, blank + whole(subject="an order"), "a/b") == [EVENT]
            assert decode(None, blank + json.dumps(DATA_CLOUDEVENTS_LIMITS).encode(), "c/d") == [
                CloudQueueWorkDetected("a", "b")
            ]
    assert decode_http({}, whole()) == [EVENT]
    assert decode_http({"content-type": "application/json"}, b"[" + whole() + b"]") == [EVENT]


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


EVENT_EVENT = CloudQueueWorkDetected("billing", "orders")
SAYS_LEAST = b'{"storage_account":"billing","queue_name":"orders"}'
TEXTS = ("id", "source", "time", "traceparent")


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
    event = msgspec.structs.replace(EVENT_EVENT, **said)
    with pytest.raises(BadInput) as refusal:
        check_event(event)
    assert (refusal.value.code, str(refusal.value)) == ("bad_trigger", words)
    with pytest.raises(BadInput) as refusal:
        decode_events(encode_events([EVENT_EVENT, event]))
    assert refusal.value.code == "bad_trigger"


@pytest.mark.parametrize(("before", "after"), [("", ""), (" \t\r\n", ""), ("[", "]"), (" \t\r\n[", "]")])
def test_one_trigger_is_of_64_kib_at_most(before: str, after: str) -> None:
    """Alone, where the blanks around it count, or among others."""
    room = EVENT_BYTES_MAX - (0 if after else len(before))
    for size in (room, room + 1):
        one = (SAYS_LEAST[:-1] + b',"x":"').ljust(size - 2, b"x") + b'"}'
        data = before.encode() + one + after.encode()
        if size == room:
            assert decode_events(data) == [EVENT_EVENT]
            continue
        with pytest.raises(BadInput, match=r"^one trigger is at most 65536 bytes$") as refusal:
            decode_events(data)
        assert refusal.value.code == "too_large"


def test_a_request_holds_a_thousand_triggers_and_a_mib() -> None:
    """The most is taken, one more of either is refused, and none of the rest is."""
    whole = b"[" + b",".join([SAYS_LEAST] * EVENTS_MAX) + b"]"
    assert decode_events(whole) == [EVENT_EVENT] * 1000
    assert decode_events(whole.ljust(REQUEST_BYTES_MAX)) == [EVENT_EVENT] * 1000
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
