"""CloudEvents 1.0 in and out, checked against the official SDK (B13; S5, S8, S21)."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import msgspec
import pytest

from queuebell.bridge.contract.cloudevents import (
    BATCH_TYPE,
    STRUCTURED_TYPE,
    decode_http,
    decode_mqtt,
    decode_nats,
    encode_wake,
)
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.event import (
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
)
from queuebell.bridge.contract.wire import Wake
from tests.support.cloudevents import (
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


@pytest.mark.parametrize(
    ("value", "id_"),
    [("Euro%20%E2%82%AC", "Euro €"), ("%2541", "%41"), ('"a \\"b\\""', 'a "b"'), ("100%", "100%"), ("€", "€")],
)
def test_values_of_headers_are_decoded_once(value: str, id_: str) -> None:
    """One round, after quotes are taken off; what is no escape stands for itself."""
    assert decode_http(binary(id=value), BODY)[0].id == id_


def test_the_attributes_of_an_event_count_before_its_data() -> None:
    """What forwards an event changes its attributes; the trigger within keeps what its sender said."""
    both = {**DATA, "time": "2026-11-01T00:00:00Z", "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    newer = {"time": "2026-11-02T00:00:00Z", "traceparent": "00-" + "3" * 32 + "-" + "4" * 16 + "-01"}
    for changes, expected in (({}, both), (newer, newer)):
        (event,) = decode_http({"content-type": STRUCTURED_TYPE}, structured(data=both, **changes))
        assert (event.time, event.traceparent) == (expected["time"], expected["traceparent"])


def test_data_given_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="either data or data_base64") as refused:
        decode_http({"content-type": STRUCTURED_TYPE}, structured(data_base64="eA=="))
    assert refused.value.code == "bad_trigger"


def test_a_wake_as_an_event_has_its_time_and_trace() -> None:
    wake = Wake(queue="billing/orders", gen=3, boot="1" * 32, size=2, reason="trigger", age_ms=0, traceparent="00-t")
    event = json.loads(encode_wake(wake, source="/bridge", time="2026-11-02T00:00:00Z").body)
    assert (event["time"], event["traceparent"], event["source"]) == ("2026-11-02T00:00:00Z", "00-t", "/bridge")
    assert "time" not in json.loads(encode_wake(wake).body)


def test_a_nats_message_says_what_its_data_is() -> None:
    """By the header that SDKs send without a prefix: text is no trigger, however it looks."""
    headers = {f"ce-{name}": value for name, value in ATTRIBUTES.items()}
    for media, size in (("application/json", 3), ("text/plain", 1)):
        assert decode_nats({**headers, "Content-Type": media}, BODY)[0].payload_size == size


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
        ({**binary(subject=None), "Content-Type": "application/octet-stream"}, BODY, "bad_trigger"),
        ({**binary(), "CE-Id": "2"}, BODY, "bad_trigger"),
        ({"content-type": STRUCTURED_TYPE}, b"", "bad_json"),
        ({"content-type": STRUCTURED_TYPE}, b'{"id": "\xff"}', "bad_json"),
        ({"content-type": STRUCTURED_TYPE}, b"[]", "bad_trigger"),
        ({"content-type": STRUCTURED_TYPE}, b'{"x":' * 100 + b"1" + b"}" * 100, "bad_json"),
        ({"content-type": BATCH_TYPE}, b"{}", "bad_trigger"),
        ({"content-type": BATCH_TYPE}, b"[1]", "bad_trigger"),
        ({"content-type": BATCH_TYPE}, b"[", "bad_json"),
        ({"content-type": "application/cloudevents+avro"}, b"x", "unsupported_media_type"),
        ({"content-type": "application/cloudevents-batch+xml"}, b"x", "unsupported_media_type"),
    ],
)
def test_s8_faults_of_form(headers: dict[str, str], body: bytes, code: str) -> None:
    """Encodings, sizes, depths, formats and attributes given twice."""
    with pytest.raises(BadInput) as caught:
        decode_http(headers, body)
    assert caught.value.code == code


def test_an_event_without_an_id_is_not_written() -> None:
    """An id names one publish (P5) and cannot be made up by the encoder."""
    with pytest.raises(ValueError, match="id"):
        encode_structured(CloudQueueWorkDetected("a", "b"))


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


def whole(**changes: Any) -> bytes:
    """Write one event in the JSON format; a change to None leaves the field out."""
    event = {**ATTRIBUTES_CLOUDEVENTS_LIMITS, **changes}
    return json.dumps({name: value for name, value in event.items() if value is not None}).encode()


def http(media: str, body: bytes, **headers: str) -> list[CloudQueueWorkDetected]:
    """Decode a request of this content type."""
    return decode_http({"Content-Type": media, **headers}, body)


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
        with pytest.raises(BadInput, match=r"^one event may have at most 65536 bytes$") as refusal:
            decode(EVENT_BYTES_MAX + 1)
        assert refusal.value.code == "too_large"
    for before in (b"\x0b", b"X"):
        with pytest.raises(BadInput, match=r"^one event may have at most 65536 bytes$"):
            decode_http({}, before + b"[" + whole().ljust(EVENT_BYTES_MAX))
    many = b"[" + b",".join([whole()] * 1000) + b"]"
    assert http(BATCH_TYPE, many.ljust(REQUEST_BYTES_MAX)) == [EVENT] * 1000
    for body, code, words in (
        (many.ljust(REQUEST_BYTES_MAX + 1), "too_large", "a batch of events may have at most 1048576 bytes"),
        (many[:-1] + b"," + whole() + b"]", "too_many_items", "at most 1000 triggers per request"),
    ):
        with pytest.raises(BadInput, match=f"^{re.escape(words)}$") as refusal:
            http(BATCH_TYPE, body)
        assert refusal.value.code == code


@pytest.mark.parametrize("name", ["storage_account", "queue_name"])
@pytest.mark.parametrize("rest", [{}, {"payload_size": "x"}])
def test_data_that_names_half_a_queue_is_meant_and_wrong(name: str, rest: dict[str, Any]) -> None:
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
    ("text", "encoded"),
    [("az!~#", "az!~#"), (' "%\x7f', "%20%22%25%7F"), ("é\n", "%C3%A9%0A"), ("", "")],
)
def test_what_is_encoded_in_a_header(text: str, encoded: str) -> None:
    """Space, quote, percent, and all but printable ASCII."""
    assert percent_encode(text) == encoded


EVENT_EVENT = CloudQueueWorkDetected("billing", "orders")
SAYS_LEAST = b'{"storage_account":"billing","queue_name":"orders"}'
TEXTS = ("id", "source", "time", "traceparent")
DEEP = "JSON may be nested at most 64 levels deep"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        *(({"payload_size": n}, f"payload_size must be a number of messages from 1 to {PAYLOAD_SIZE_MAX}")
          for n in (0, PAYLOAD_SIZE_MAX + 1, True, 1.5)),
        *(({"not_before_ms": n}, f"not_before_ms must be from 0 to {NOT_BEFORE_MS_MAX}")
          for n in (-1, NOT_BEFORE_MS_MAX + 1, False, 1.5)),
        *(({name: text}, f"{name} must be text of at most {TEXT_MAX} characters")
          for name in TEXTS for text in ("x" * (TEXT_MAX + 1), 7)),
        *(({name: text}, f"{name} contains a control character")
          for name in TEXTS for text in ("a\nb", "\x1b[2J", "\0")),
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


def test_a_request_holds_a_thousand_triggers_and_a_mib() -> None:
    """The most is taken, one more of either is refused, and none of the rest is."""
    whole = b"[" + b",".join([SAYS_LEAST] * EVENTS_MAX) + b"]"
    assert decode_events(whole) == [EVENT_EVENT] * 1000
    assert decode_events(whole.ljust(REQUEST_BYTES_MAX)) == [EVENT_EVENT] * 1000
    assert decode_events(b"[]") == []
    for data, code, words in (
        (whole[:-1] + b"," + SAYS_LEAST + b"]", "too_many_items", "at most 1000 triggers per request"),
        (whole.ljust(REQUEST_BYTES_MAX + 1), "too_large", "a trigger request may have at most 1048576 bytes"),
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
        (SAYS_LEAST[:-1] + b',"x":' + b"[" * 80 + b"]" * 80 + b"}", "bad_json", DEEP),
        (b"[" + SAYS_LEAST[:-1] + b',"x":' + b"[" * 80 + b"]" * 80 + b"}]", "bad_json", DEEP),
    ],
)  # fmt: skip
def test_a_fault_of_form_is_told_from_one_of_content(data: bytes, code: str, words: str) -> None:
    with pytest.raises(BadInput) as refusal:
        decode_events(data)
    assert (refusal.value.code, str(refusal.value)) == (code, words)


@pytest.mark.parametrize("before", [b"\x0b", b"X"])
def test_only_blanks_of_json_stand_before_an_array(before: bytes) -> None:
    """What comes after anything else is held to the size of one trigger."""
    with pytest.raises(BadInput, match=r"^one trigger may have at most 65536 bytes$"):
        decode_events(before + b"[" + b" " * EVENT_BYTES_MAX)


def test_a_trigger_of_other_letters_is_read() -> None:
    """UTF-8 passes, in what is read and in what is not."""
    data = json.dumps({"storage_account": "a", "queue_name": "q", "id": "é", "x": "日本"}, ensure_ascii=False)
    assert decode_events(data.encode()) == [CloudQueueWorkDetected("a", "q", id="é")]
