"""The facts that travel with a buried message: nothing of its body is lost or altered, whatever fits."""

from __future__ import annotations

import binascii
import datetime
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuebell.bridge.contract.burial import (
    Attempt,
    BadBurial,
    Burial,
    Earlier,
    facts,
    glimpse,
    opened,
    read_burial,
    replay_target,
    write_burial,
)
from queuebell.bridge.contract.claim import (
    BadClaim,
    Claim,
    blob_name,
    is_claim,
    lives_for,
    lost_claim,
    place_of,
    read_claim,
    write_claim,
)
from queuebell.bridge.contract.errors import BadInput

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
LIMIT = 65_536
BURIAL = Burial(
    "billing/orders",
    "17",
    NOON,
    NOON,
    "attempt 2 of 2: ValueError: no",
    2,
    error="ValueError",
    trace="Traceback:\n  line\nValueError: no",
    traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    listener="worker",
    history=(Attempt(1, NOON, "ValueError: no"), Attempt(2, NOON, "ValueError: no")),
)


def written(body: bytes = b"x", limit: int = LIMIT, burial: Burial = BURIAL, **changes: Any) -> bytes:
    """Write a burial that fits, with some of its facts changed."""
    travels = write_burial(msgspec.structs.replace(burial, **changes), body, limit)
    assert travels is not None
    return travels


def test_a_moment_without_its_offset_is_not_written() -> None:
    """It could not be read again, and a handler would be given the facts for a body."""
    assert write_burial(msgspec.structs.replace(BURIAL, inserted_at=NOON.replace(tzinfo=None)), b"x", LIMIT) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"burial:1 ", b"burial:2 "),
        (b"billing/orders", b"billing/../../etc"),
        (b"billing/before", b"billing/\\u001b[31m"),
        (b'"attempts":2', b'"attempts":"2"'),
        (b"2026-11-21T12:00:00Z", b"2026-11-21T12:00:00"),
        (b'"size":4', b'"size":5'),
        (b'"size":4', b'"size":-1'),
        (b'"identity"', b'"rot13"'),
        (b'"identity"', b'"base64"'),
        (b'"identity"', b'"zlib"'),
        (b"}}\n", b"}\n"),
        (b"}}\n", b"}}"),
        (b"ValueError", b"Value\xffError"),
    ],
)
def test_a_damaged_burial_is_a_plain_body(old: bytes, new: bytes) -> None:
    """Another version, a wrong type, a body that was cut off: the reader refuses it, and it is handled as it is."""
    before = Earlier("billing/before", "16", NOON, NOON, "no", 2)
    travels = written(b"body", earlier=(before,))
    assert old in travels
    damaged = travels.replace(old, new, 1)
    with pytest.raises(BadBurial):
        read_burial(damaged)
    assert opened(damaged) == (None, damaged)


def test_no_small_burial_opens_to_much() -> None:
    """Up to what a queue elsewhere may hold, and no byte more: a listener holds many messages at once."""
    most = b"\xff" * 1024 * 1024
    travels = written(most)
    assert opened(travels) == (BURIAL, most)
    assert write_burial(BURIAL, most + b"\xff", LIMIT) is None
    packed = binascii.b2a_base64(zlib.compress(most + b"\xff"), newline=False)
    honest = b"%d" % len(most)
    bomb = travels[: travels.index(b"\n") + 1].replace(honest, b"%d" % (len(most) + 1)) + packed
    assert opened(bomb) == (None, bomb)


@pytest.mark.parametrize(
    ("here", "queue", "wanted", "target"),
    [
        ("billing/orders-poison", None, None, "billing/orders"),
        ("billing/orders-poison", "billing/orders", None, "billing/orders"),
        ("billing/graves", "billing/orders", None, "billing/orders"),
        ("billing/graves", "billing/orders", "other", "billing/other"),
        ("billing/graves", None, "billing/other", "billing/other"),
        ("billing/orders-poison", "elsewhere/orders", "orders", "billing/orders"),
        ("billing/graves", None, None, None),
        ("billing/orders-poison", "elsewhere/orders", None, None),
        ("billing/orders-poison", None, "elsewhere/orders", None),
        ("billing/orders", "billing/orders", None, None),
        ("billing/orders-poison", None, "orders-poison", None),
        ("billing/orders-poison", None, "no such\nname", None),
    ],
)
def test_where_a_message_goes_back_to(here: str, queue: str | None, wanted: str | None, target: str | None) -> None:
    """To the queue that is named, or it came from; never to another account, and never to where it is."""
    burial = None if queue is None else msgspec.structs.replace(BURIAL, queue=queue)
    if target is not None:
        assert replay_target(here, burial, wanted) == target
        return
    with pytest.raises(BadInput):
        replay_target(here, burial, wanted)


def headed(size: int, encoding: str) -> bytes:
    """Return the line of facts of a body of this size and encoding, as another writer may have made it."""
    line = written(b"x").removesuffix(b"x")
    return line.replace(b'"size":1,"encoding":"identity"', b'"size":%d,"encoding":"%s"' % (size, encoding.encode()))


@pytest.mark.parametrize("payload", [b"/w==\n", b"/w==/w==", b"\n/w==", b"/-w==", b"/w==="])
def test_base64_is_taken_as_it_was_written_or_not_at_all(payload: bytes) -> None:
    """No byte in it is passed over: what a store has added or changed is damage."""
    assert opened(headed(1, "base64") + b"/w==") == (BURIAL, b"\xff")
    damaged = headed(1, "base64") + payload
    assert opened(damaged) == (None, damaged)


@pytest.mark.parametrize(("payload", "encoding"), [(b"/w=", "base64"), (b"////", "zlib"), (b"/w=", "zlib")])
def test_how_a_body_is_damaged_is_said(payload: bytes, encoding: str) -> None:
    with pytest.raises(BadBurial, match=r"^a dead letter whose body is damaged: .+"):
        read_burial(headed(1, encoding) + payload)


@given(st.binary(max_size=3000), st.integers(min_value=0, max_value=3000), st.sampled_from([500, 900, 2000, 9000]))
def test_a_glimpse_is_the_beginning_of_what_opens(body: bytes, most: int, limit: int) -> None:
    """In every encoding, at every length, with the same facts and size."""
    travels = write_burial(BURIAL, body, limit)
    if travels is not None:
        whole, opens = opened(travels)
        assert facts(travels) == whole
        assert glimpse(travels, most) == (whole, opens[:most], len(opens))
    assert glimpse(body, most) == (None, body[:most], len(body))
    assert facts(body) is None


def test_facts_stand_before_a_damaged_body() -> None:
    """They can be read where the body cannot; a glimpse of a short body notices."""
    damaged = written(b"body").replace(b'"identity"', b'"zlib"')
    assert facts(damaged) == BURIAL
    assert glimpse(damaged, 100) == (None, damaged[:100], len(damaged))
    assert facts(damaged.replace(b"burial:1", b"burial:2")) is None


CLAIM = Claim(blob_name("billing/orders", -1, "0" * 32), "a" * 64, 70_000, "zlib")


def test_a_lost_claim_is_no_claim() -> None:
    """What a supervisor is handed of it can be read by people, and sends nobody to look for its blob."""
    lost = lost_claim(write_claim(CLAIM))
    assert not is_claim(lost)
    assert CLAIM.blob.encode() in lost


def test_a_name_tells_its_time_to_live() -> None:
    assert lives_for(CLAIM.blob) is None
    assert lives_for(blob_name("a/b", 60, "0" * 32)) == 60
    with pytest.raises(BadClaim, match="no claim check has written"):
        lives_for("a/b/60")


def test_a_name_tells_the_store_of_its_message() -> None:
    """By 16 hex digits, which the names of older versions lack: both are read."""
    name = blob_name("a/b", 60, "0" * 32, "e" * 16)
    assert (lives_for(name), place_of(name)) == (60, "e" * 16)
    assert place_of(CLAIM.blob) is None
    assert read_claim(write_claim(Claim(name, "a" * 64, 1, "zlib"))).blob == name
    with pytest.raises(BadClaim):
        place_of("a/b/60-ee-00")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"size": -1}, "malformed"),
        ({"sha256": "A" * 64}, "malformed"),
        ({"sha256": "a" * 65}, "malformed"),
        ({"blob": "a/b/never-" + "f" * 33}, "malformed"),
        ({"blob": "a/b/99999999999-" + "f" * 32}, "malformed"),
        ({"encoding": "IDENTITY"}, "encoding"),
        ({"size": "1"}, "a claim that cannot be read: Expected `int`"),
    ],
)
def test_each_fault_of_a_claim_is_refused_alone(damage: dict[str, Any], words: str) -> None:
    """It comes from whoever may put here."""
    with pytest.raises(BadClaim, match=words):
        read_claim(write_claim(msgspec.structs.replace(CLAIM, **damage)))
