"""What a frame carries besides itself over brokers (S1)."""

from __future__ import annotations

import json

import msgspec
import pytest

from bridge.contract.errors import BadInput
from bridge.contract.framing import (
    LAST_COUNT,
    Stamp,
    encode_down,
    encode_up,
    encode_will,
    instance_of,
    is_instance,
    is_will,
    read_stamp,
    seq_of,
)
from bridge.contract.wire import (
    FRAME_BYTES_MAX,
    Bye,
    DownFrame,
    Drain,
    Hello,
    More,
    Subscription,
    UpFrame,
    Welcome,
    decode_down,
    decode_up,
)

ME = "0123456789abcdef" * 2
BOOT = "b" * 32


@pytest.mark.parametrize("frame", [Hello(ME, "worker", []), More("a/b"), Bye()])
@pytest.mark.parametrize("to", [None, BOOT])
def test_a_listeners_frame_says_who_sends_it_and_to_which_boot(frame: UpFrame, to: str | None) -> None:
    """Once each, also where the frame says it by itself; and whoever knows no stamp reads the frame all the same."""
    data = encode_up(frame, ME, 7, to)
    assert read_stamp(data) == Stamp(ME, 7, None, to)
    assert data.count(b'"instance"') == data.count(b'"seq"') == 1
    assert ("to" in json.loads(data)) is (to is not None)
    read = decode_up(data)
    assert type(read) is type(frame)
    assert read is not None
    assert (getattr(read, "instance", None), getattr(read, "seq", None)) == (ME, 7)


@pytest.mark.parametrize("frame", [Welcome(BOOT, 1, 2, 3, []), Drain(), Bye()])
def test_a_bridges_frame_says_its_boot(frame: DownFrame) -> None:
    """Once, with the instance that it is for."""
    data = encode_down(frame, ME, 8, BOOT)
    assert read_stamp(data) == Stamp(ME, 8, BOOT, None)
    assert data.count(b'"boot"') == data.count(b'"instance"') == data.count(b'"seq"') == 1
    assert type(decode_down(data)) is type(frame)


def test_a_sequence_grows_over_connections() -> None:
    """The last will of one comes after all it says, and before all of the next."""
    will = read_stamp(encode_will(ME, 3))
    assert will.instance == ME
    assert isinstance(decode_up(encode_will(ME, 3)), Bye)
    assert will.seq is not None
    assert seq_of(3, 1) < seq_of(3, LAST_COUNT - 1) < will.seq < seq_of(4, 1)
    assert (seq_of(0, 1), seq_of(0, LAST_COUNT), seq_of(1, 0)) == (1, 2**32 - 1, 2**32)


@pytest.mark.parametrize(
    ("seq", "will"),
    [(None, False), (0, False), (LAST_COUNT, True), (LAST_COUNT - 1, False), (seq_of(5, LAST_COUNT), True)],
)
def test_a_will_is_known_by_its_number(seq: int | None, will: bool) -> None:
    """The last one that its connection has, whichever that was."""
    assert is_will(Stamp(ME, seq)) is will


@pytest.mark.parametrize(
    ("text", "is_one"),
    [(ME, True), ("", False), (ME[1:], False), (ME + "0", False), (ME[1:] + "g", False), (ME.upper(), False)],
)
def test_an_instance_is_32_hex_digits(text: str, is_one: bool) -> None:
    """It becomes part of a topic."""
    assert is_instance(text) is is_one


def test_a_stamp_may_be_absent_and_must_be_json() -> None:
    """As far as it is there; no larger than a frame, and nothing that came in is repeated."""
    assert read_stamp(b'{"type":"bye"}') == Stamp()
    assert read_stamp(b"{}".ljust(FRAME_BYTES_MAX)) == Stamp()
    with pytest.raises(BadInput, match=r"^a frame is at most 65536 bytes$") as refusal:
        read_stamp(b"{}".ljust(FRAME_BYTES_MAX + 1))
    assert refusal.value.code == "too_large"
    for data in (b"", b"[]", b'{"seq":"1"}', b'{"instance":"\xff"}', b'{"x":' + b"[" * 60_000):
        with pytest.raises(BadInput) as refusal:
            read_stamp(data)
        assert (refusal.value.code, str(refusal.value)) == ("bad_json", "a frame is one JSON object in UTF-8")


def test_an_instance_is_made_of_its_ticket() -> None:
    """As the page of the wire says it: the first 32 hexadecimal digits of SHA-256, for any text."""
    assert instance_of("abc") == "ba7816bf8f01cfea414140de5dae2223"
    assert is_instance(instance_of("")) and is_instance(instance_of("é" * 9000))


def test_what_proves_a_sender_is_carried_and_not_shown() -> None:
    """Key and ticket go through, the last will has the ticket; a stamp that is logged shows neither."""
    hello = Hello(ME, "me", [Subscription("a/b", 1)])
    data = encode_up(hello, ME, 1, ticket="f" * 32, credential="qb_secret.~+/-=")
    assert decode_up(data) == msgspec.structs.replace(hello, seq=1)
    stamp = read_stamp(data)
    assert stamp == Stamp(ME, 1, None, None, "qb_secret.~+/-=", "f" * 32)
    assert "qb_secret" not in f"{stamp!r} {stamp}"
    assert "f" * 32 not in f"{stamp!r} {stamp}"
    assert read_stamp(encode_will(ME, 3, ticket="f" * 32)).ticket == "f" * 32
