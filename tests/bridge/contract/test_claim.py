"""The text that travels in place of a body."""

from __future__ import annotations

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
    with pytest.raises(BadClaim):
        lives_for("a/b/60")


def test_a_name_tells_the_store_of_its_message() -> None:
    """By 16 hex digits, which the names of older versions lack: both are read."""
    name = blob_name("a/b", 60, "0" * 32, "e" * 16)
    assert (lives_for(name), place_of(name)) == (60, "e" * 16)
    assert place_of(CLAIM.blob) is None
    assert read_claim(write_claim(Claim(name, "a" * 64, 1, "zlib"))).blob == name
    with pytest.raises(BadClaim):
        place_of("a/b/60-ee-00")
