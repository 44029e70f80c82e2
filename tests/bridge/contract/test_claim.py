"""The text that travels in place of a body."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.claim import (
    CLAIM_BYTES_MAX,
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

CLAIM = Claim(blob_name("billing/orders", -1, "0" * 32), "a" * 64, 70_000, "zlib")


def test_a_claim_comes_back_as_it_was() -> None:
    """Written, it is plain ASCII text that reads as the same claim."""
    body = write_claim(CLAIM)
    assert body.isascii()
    assert is_claim(body)
    assert read_claim(body) == CLAIM


def test_the_longest_claim_fits() -> None:
    """Whatever the names of account and queue, a claim stays below its bound."""
    name = blob_name(f"{'a' * 80}/{'b' * 80}", 315_360_000, "f" * 32, "e" * 16)
    assert len(write_claim(Claim(name, "a" * 64, 2**40, "identity"))) <= CLAIM_BYTES_MAX


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"claim:1 ", b"claim:2 "),
        (b"billing/orders", b"billing/../../etc"),
        (b"billing/orders/never", b"/etc/passwd"),
        (b"never-", b"never-0"),
        (b"a" * 64, b"a" * 63),
        (b"70000", b"-1"),
        (b"70000", b'"70000"'),
        (b"zlib", b"bzip"),
        (b"}", b""),
        (b"}", b"}" + b" " * 1000),
        (b'"sha256"', b'"\xff"'),
    ],
)
def test_a_damaged_claim_is_refused(old: bytes, new: bytes) -> None:
    """Another version, a blob of a name that is not ours, a wrong type: refused before anything is fetched."""
    body = write_claim(CLAIM)
    assert old in body
    with pytest.raises(BadClaim):
        read_claim(body.replace(old, new, 1))


@given(st.binary())
def test_no_body_breaks_the_reader(tail: bytes) -> None:
    """Whatever follows the magic, it is a claim or refused."""
    with pytest.raises(BadClaim):
        read_claim(b"queuebell-claim:1 " + tail)


def test_a_lost_claim_is_no_claim() -> None:
    """What a supervisor is handed of it can be read by people, and sends nobody to look for its blob."""
    lost = lost_claim(write_claim(CLAIM))
    assert not is_claim(lost)
    assert CLAIM.blob.encode() in lost


def test_a_name_tells_its_time_to_live() -> None:
    """In seconds, or never."""
    assert lives_for(CLAIM.blob) is None
    assert lives_for(blob_name("a/b", 60, "0" * 32)) == 60
    with pytest.raises(BadClaim, match="no claim check has made"):
        lives_for("a/b/60")


def test_a_name_tells_the_store_of_its_message() -> None:
    """By 16 hex digits, which the names of older versions lack: both are read."""
    name = blob_name("a/b", 60, "0" * 32, "e" * 16)
    assert (lives_for(name), place_of(name)) == (60, "e" * 16)
    assert place_of(CLAIM.blob) is None
    assert read_claim(write_claim(Claim(name, "a" * 64, 1, "zlib"))).blob == name
    with pytest.raises(BadClaim):
        place_of("a/b/60-ee-00")


def test_a_claim_is_one_line_that_other_versions_read() -> None:
    """The very text: it is on queues now, and stays readable."""
    text = (
        'queuebell-claim:1 {"blob":"billing/orders/never-00000000000000000000000000000000",'
        f'"sha256":"{"a" * 64}","size":70000,"encoding":"zlib"}}'
    )
    assert write_claim(CLAIM) == text.encode()
    assert read_claim(text.ljust(CLAIM_BYTES_MAX).encode()) == CLAIM
    with pytest.raises(BadClaim, match="too long") as refusal:
        read_claim(text.ljust(CLAIM_BYTES_MAX + 1).encode())
    assert refusal.value.code == "bad_parameter"
    assert lost_claim(text.encode()) == b"queuebell-claim-lost:" + text.encode().removeprefix(b"queuebell-claim:")
    assert is_claim(b"queuebell-claim:2 x")
    assert not is_claim(b" queuebell-claim:1 x")


@pytest.mark.parametrize(
    ("ttl_s", "place", "name"),
    [(-1, "", "never-"), (0, "", "0-"), (60, "e" * 16, f"60-{'e' * 16}-"), (9_999_999_999, "", "9999999999-")],
)
def test_a_blobs_name_is_made_and_read(ttl_s: int, place: str, name: str) -> None:
    """Below its queue: its time to live, its store's place where it is known, and a token."""
    blob = blob_name("a/b", ttl_s, "f" * 32, place)
    assert blob == f"a/b/{name}{'f' * 32}"
    assert (lives_for(blob), place_of(blob)) == (None if ttl_s < 0 else ttl_s, place or None)
    for size in (0, 1):
        for encoding in ("identity", "zlib"):
            claim = Claim(blob, "0123456789abcdef" * 4, size, encoding)
            assert read_claim(write_claim(claim)) == claim


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
