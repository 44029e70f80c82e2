"""How deep JSON may nest, and at what cost that is found out."""

from __future__ import annotations

import json
import time

import pytest

from bridge.contract.errors import BadInput
from bridge.contract.event import DEPTH_MAX, check_depth, decode_events, well_formed

EVENT = b'{"storage_account":"billing","queue_name":"orders"}'


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_depth_is_bounded(opening: bytes) -> None:
    """Up to the limit it passes, some levels past it it does not; closed or not."""
    closing = b"]" if opening == b"[" else b"}"
    check_depth(opening * DEPTH_MAX + b"1" + closing * DEPTH_MAX)
    for depth in (DEPTH_MAX + 4, 100_000):
        with pytest.raises(BadInput, match="deep"):
            check_depth(opening * depth + b"1" + closing * depth)
    with pytest.raises(BadInput, match="deep"):
        check_depth(opening * 100_000)


def test_brackets_in_strings_and_side_by_side_are_not_depth() -> None:
    """A thousand flat things, and text full of brackets."""
    check_depth(json.dumps([{"a": []}] * 5000).encode())
    check_depth(json.dumps({"text": '[{"\\' * 5000}).encode())
    check_depth(json.dumps(["]" * 100, '"', "[" * 100] * 20).encode())
    assert len(decode_events(b"[" + b",".join([EVENT] * 1000) + b"]")) == 1000


def test_hostile_documents_are_judged_quickly() -> None:
    """A loop over every byte of a MiB would hold up everyone for a tenth of a second and more."""
    begun = time.process_time()
    for document in (
        b"{" * 65 + b'"' + b'\\"' * 500_000,
        b'"' * 1_000_000 + b"{" * 70,
        b"[" + b"[]," * 300_000 + b"[]]",
        b'{"a":"' + b"[{" * 500_000 + b'"}',
        b"[" * 1_000_000,
    ):
        try:
            check_depth(document)
        except BadInput:
            pass
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize(
    ("document", "fits"),
    [
        (b"{}", True),
        (b" [1] ", True),
        (b'"a"', True),
        (b"", False),
        (b"{", False),
        (b"{} {}", False),
        (b'"\xff"', False),
        (b"NaN", False),
        (b"[" * 100_000, False),
    ],
)
def test_well_formed(document: bytes, fits: bool) -> None:
    """One document in UTF-8, and no more."""
    assert well_formed(document) is fits


def test_text_that_nobody_reads_is_utf8_too() -> None:
    """An unknown field is skipped, not believed: what is not UTF-8 is no JSON."""
    with pytest.raises(BadInput) as refusal:
        decode_events(b'{"storage_account":"a","queue_name":"q","x":"\xff"}')
    assert refusal.value.code == "bad_json"
