"""CloudEvents 1.0 in and out, checked against the official SDK (B13; S5, S8, S21)."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

import pytest
from cloudevents.core.bindings import http as sdk
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.cloudevents import (
    BATCH_TYPE,
    STRUCTURED_TYPE,
    decode_http,
    decode_mqtt,
    decode_nats,
    percent_decode,
)
from bridge.contract.cloudevents_out import WAKE_TYPE, encode_wake
from bridge.contract.errors import BadInput
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import Wake
from tests.support.cloudevents import (
    encode_batch,
    encode_http_binary,
    encode_mqtt_binary,
    encode_nats_binary,
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
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MOMENT = datetime.datetime(2026, 11, 20, 17, 31, tzinfo=datetime.UTC)
TRIGGER = CloudQueueWorkDetected("billing", "orders", 3, id="1", source="/shop")
RICH = CloudQueueWorkDetected(
    "billing", "orders", 3, "ä b\"%'", "urn:x y", "2026-11-20T17:31:00.123Z", not_before_ms=5, traceparent=TRACE
)


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


@pytest.mark.parametrize("event", [TRIGGER, RICH], ids=["plain", "rich"])
def test_the_sdk_reads_what_we_write(event: CloudQueueWorkDetected) -> None:
    """Structured, binary and batch, with letters that need encoding in every attribute."""
    encoded = encode_http_binary(event)
    readings = [
        sdk.from_http_event(sdk.HTTPMessage({"content-type": STRUCTURED_TYPE}, encode_structured(event))),
        sdk.from_http_event(sdk.HTTPMessage({"content-type": encoded.content_type, **encoded.headers}, encoded.body)),
    ]
    for item in json.loads(encode_batch([event, event])):
        body = json.dumps(item).encode()
        readings.append(sdk.from_http_event(sdk.HTTPMessage({"content-type": STRUCTURED_TYPE}, body)))
    for read in readings:
        assert (read.get_id(), read.get_source(), read.get_type()) == (event.id, event.source, "CloudQueueWorkDetected")
        assert read.get_subject() == "billing/orders"
        assert read.get_extension("traceparent") == event.traceparent
        if event.time is not None:  # without one the SDK fills in its own
            assert read.get_attributes()["time"].isoformat() == "2026-11-20T17:31:00.123000+00:00"
        data = read.get_data()
        assert isinstance(data, dict)
        assert data["payload_size"] == 3


@pytest.mark.parametrize("data", [DATA, json.dumps(DATA).encode()], ids=["object", "bytes"])
@pytest.mark.parametrize("id_", ["1", 'ä b"%', "%41"])
def test_we_read_what_the_sdk_writes(data: Any, id_: str) -> None:
    """Both modes; bytes become data_base64 there."""
    attributes = {**ATTRIBUTES, "id": id_, "datacontenttype": "application/json", "traceparent": TRACE}
    event = CloudEvent(attributes={**attributes, "time": MOMENT}, data=data)
    wanted = CloudQueueWorkDetected(
        "billing", "orders", 3, id=id_, source="/shop", time="2026-11-20T17:31:00Z", traceparent=TRACE
    )
    for message in (sdk.to_structured_event(event), sdk.to_binary_event(event)):
        assert decode_http(message.headers, message.body) == [wanted]
    whole = sdk.to_structured_event(event).body
    assert decode_http({"content-type": BATCH_TYPE}, b"[" + whole + b"," + whole + b"]") == [wanted, wanted]
    # The SDK has no binding for NATS and MQTT; structured is the same bytes there.
    assert decode_nats({"content-type": STRUCTURED_TYPE}, whole) == [wanted]
    assert decode_mqtt(STRUCTURED_TYPE, {}, whole) == [wanted]


def test_a_wake_is_an_event_that_the_sdk_reads_and_no_bridge_marks() -> None:
    """Its type is another, or a bridge told of its own wakes would mark them."""
    wake = Wake("billing/orders", "b" * 32, 7, "trigger", 3, 1, TRACE)
    encoded = encode_wake(wake, time="2026-11-20T17:31:00.123Z")
    read = sdk.from_http_event(sdk.HTTPMessage({"content-type": encoded.content_type}, encoded.body))
    assert (read.get_type(), read.get_subject(), read.get_id()) == (WAKE_TYPE, "billing/orders", "b" * 32 + ":7")
    assert read.get_extension("traceparent") == TRACE
    data = read.get_data()
    assert isinstance(data, dict)
    assert (data["type"], data["gen"], data["reason"]) == ("wake", 7, "trigger")
    with pytest.raises(BadInput, match="type"):
        decode_http({"content-type": STRUCTURED_TYPE}, encoded.body)


# -- there and back --------------------------------------------------------------------------------------------------

_texts = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40)


@given(_texts, _texts, st.none() | _texts, st.integers(1, 1_000_000), st.integers(0, 604_800_000))
def test_every_trigger_comes_back_by_every_way(
    id_: str, source: str, time: str | None, size: int, not_before_ms: int
) -> None:
    """What is written is what is read, on each bus and in each mode."""
    event = CloudQueueWorkDetected("a", "b", size, id_, source, time, not_before_ms)
    whole, batch = encode_structured(event), encode_batch([event, event])
    http, nats, mqtt = encode_http_binary(event), encode_nats_binary(event), encode_mqtt_binary(event)
    assert decode_http({"Content-Type": STRUCTURED_TYPE}, whole) == [event]
    assert decode_http({"Content-Type": BATCH_TYPE}, batch) == [event, event]
    assert decode_http({"Content-Type": http.content_type, **http.headers}, http.body) == [event]
    assert decode_nats({"Content-Type": STRUCTURED_TYPE}, whole) == decode_nats(None, whole) == [event]
    assert decode_nats(nats.headers, nats.body) == [event]
    assert decode_mqtt(STRUCTURED_TYPE, None, whole) == decode_mqtt(None, None, whole) == [event]
    assert decode_mqtt(mqtt.content_type, mqtt.headers, mqtt.body) == [event]


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_percent_encoding_is_undone(text: str) -> None:
    """And uses only what may stand in a header."""
    encoded = percent_encode(text)
    assert all("!" <= char <= "~" and char != '"' for char in encoded)
    assert percent_decode(encoded) == text


# -- bindings --------------------------------------------------------------------------------------------------------


def test_nats_has_its_content_type_as_an_attribute() -> None:
    """The binding says ce-datacontenttype; one SDK sends content-type bare, and both are read."""
    encoded = encode_nats_binary(TRIGGER)
    assert encoded.headers["ce-datacontenttype"] == "application/json"
    assert "ce-datacontenttype" not in encode_http_binary(TRIGGER).headers
    assert decode_nats(binary(), BODY) == [TRIGGER]
    bare = {name: value for name, value in binary().items() if name != "Content-Type"}
    assert decode_nats(bare, BODY) == [TRIGGER]
    unread = decode_nats({**bare, "ce-datacontenttype": "text/plain"}, BODY)
    assert unread == [CloudQueueWorkDetected("billing", "orders", id="1", source="/shop")]


def test_mqtt_names_attributes_as_they_are() -> None:
    """No prefix and no percent-encoding there; 3.1.1 has nothing but the payload."""
    properties = encode_mqtt_binary(RICH).headers
    assert properties["id"] == RICH.id
    assert decode_mqtt("application/json", {**ATTRIBUTES, "id": "%41"}, BODY)[0].id == "%41"
    assert decode_mqtt(None, None, structured()) == [TRIGGER]
    assert decode_mqtt(None, {"other": "property"}, BODY) == [CloudQueueWorkDetected("billing", "orders", 3)]


@pytest.mark.parametrize("decode", [decode_nats, lambda headers, body: decode_mqtt(None, headers, body)])
def test_plain_triggers_pass_through(decode: Any) -> None:
    """What is no event is the JSON of docs/http.md, arrays too."""
    assert decode(None, BODY) == [CloudQueueWorkDetected("billing", "orders", 3)]
    assert len(decode({}, b"[" + BODY + b"," + BODY + b"]")) == 2
    assert decode({"trace": "x"}, BODY)[0].payload_size == 3


@pytest.mark.parametrize(
    "media",
    ["Application/CloudEvents+JSON; charset=utf-8", "application/cloudevents", "application/cloudevents+json;x=y"],
)
def test_case_and_parameters_of_the_type_do_not_matter(media: str) -> None:
    """The batch's type starts like the other's and is told from it."""
    assert decode_http({"content-TYPE": media}, structured()) == [TRIGGER]
    assert decode_http({"x": "y", "CONTENT-type": "Application/CloudEvents-Batch+json"}, b"[]") == []


def test_headers_are_ignored_where_the_body_is_structured() -> None:
    """The specification lets attributes be copied to headers; the body counts."""
    headers = {**binary(id="another"), "Content-Type": STRUCTURED_TYPE}
    assert decode_http(headers, structured()) == [TRIGGER]


@pytest.mark.parametrize(
    ("value", "id_"),
    [("Euro%20%E2%82%AC", "Euro €"), ("%2541", "%41"), ('"a \\"b\\""', 'a "b"'), ("100%", "100%"), ("€", "€")],
)
def test_values_of_headers_are_decoded_once(value: str, id_: str) -> None:
    """One round, after quotes are taken off; what is no escape stands for itself."""
    assert decode_http(binary(id=value), BODY)[0].id == id_


def test_data_may_be_left_to_the_subject_and_the_subject_to_the_data() -> None:
    """One of them names the queue; two have to agree."""
    plain = CloudQueueWorkDetected("billing", "orders", id="1", source="/shop")
    assert decode_http(binary(), b"") == [plain]
    assert decode_http({"content-type": STRUCTURED_TYPE}, structured(data=None)) == [plain]
    assert decode_nats({"content-type": STRUCTURED_TYPE}, structured(data={"payload_size": 1})) == [plain]
    assert decode_http({"content-type": STRUCTURED_TYPE}, structured(subject=None)) == [TRIGGER]
    raw = base64.b64encode(BODY).decode()
    assert decode_http({"content-type": STRUCTURED_TYPE}, structured(data=None, data_base64=raw)) == [TRIGGER]


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


@pytest.mark.parametrize("text", ["order 17", {"order": 17}, [1], 17, True, None])
def test_data_in_the_json_format_may_be_any_value(text: Any) -> None:
    """The same without base64, as most SDKs write text and objects."""
    for kind in (None, "text/plain", "application/json"):
        found = decode_http({"content-type": STRUCTURED_TYPE}, structured(data=text, datacontenttype=kind))
        assert found == [CloudQueueWorkDetected("billing", "orders", id="1", source="/shop")]


@pytest.mark.parametrize("subject", ["billing/orders", None])
def test_what_names_two_queues_is_refused_on_a_topic_too(subject: str | None) -> None:
    """Which of them was meant nobody can know."""
    attributes = {name: value for name, value in {**ATTRIBUTES, "subject": subject}.items() if value is not None}
    with pytest.raises(BadInput, match="two different queues"):
        decode_mqtt(None, attributes, json.dumps({**DATA, "queue_name": "other"}).encode(), "billing/orders")


def test_a_subject_that_is_a_queue_is_not_changed_into_the_topics() -> None:
    """Who hears the topic sees that they differ, and refuses it."""
    (event,) = decode_mqtt(None, {**ATTRIBUTES, "subject": "billing/other"}, b"", "billing/orders")
    assert event.queue == "billing/other"


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
