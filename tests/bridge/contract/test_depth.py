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


ARRAYS = ("[", "]", "[[[[]]]]")
OBJECTS = ('{"a":', "}", '{"b":{"b":{"b":{}}}}')


def nested(kind: tuple[str, str, str], depth: int, beside: str, times: int) -> bytes:
    """Return a document of this depth, with so many of something else beside its innermost."""
    begin, end, _ = kind
    inner = ",".join([beside] * times + ["[]"]) if kind is ARRAYS else ",".join([f'"b":{beside}'] * times + ['"c":{}'])
    inner = f"[{inner}]" if kind is ARRAYS else f"{{{inner}}}"
    document = begin * (depth - 2) + inner + end * (depth - 2)
    json.loads(document)
    return document.encode()


@pytest.mark.parametrize("kind", [ARRAYS, OBJECTS], ids=["arrays", "objects"])
def test_depth_is_what_counts_and_not_how_many(kind: tuple[str, str, str]) -> None:
    """Of one kind to the very level, however many there are side by side, at whatever depth; never more than said."""
    flat = "[]" if kind is ARRAYS else "{}"
    for times in (0, 1, 100):
        check_depth(nested(kind, DEPTH_MAX, flat, times))
        check_depth(nested(kind, DEPTH_MAX - 3, kind[2], times))
        for depth in (DEPTH_MAX + 1, DEPTH_MAX + 30):
            with pytest.raises(BadInput, match=rf"^JSON nests at most {DEPTH_MAX} deep$"):
                check_depth(nested(kind, depth, flat, times))
    check_depth(nested(kind, 5, kind[2], 100))


@pytest.mark.parametrize("kind", [ARRAYS, OBJECTS], ids=["arrays", "objects"])
@pytest.mark.parametrize("times", [1, 30, 300])
def test_what_was_closed_is_no_less_deep_for_it(kind: tuple[str, str, str], times: int) -> None:
    """Depth goes on from where it was before what stands beside, whose own depth comes and goes."""
    begin, end, beside = kind
    opening, goes_on = ("[", "") if kind is ARRAYS else ("{", '"c":')
    between = f"{beside}," if kind is ARRAYS else f'"b":{beside},'
    document = begin * 29 + opening + between * times + goes_on + begin * 45 + "1" + end * 75
    json.loads(document)
    with pytest.raises(BadInput, match="deep"):
        check_depth(document.encode())


def test_brackets_up_to_the_limit_are_never_too_many() -> None:
    """What holds no more of them than may be nested is not looked at, whether it is JSON or not."""
    check_depth(b"[" * DEPTH_MAX)
    check_depth(b"{" * DEPTH_MAX)
    check_depth(b"[[{{", 4)
    with pytest.raises(BadInput, match="deep"):
        check_depth(b"[[[{{", 4)


@pytest.mark.parametrize("first", [0, 1], ids=["array outside", "object outside"])
def test_kinds_that_alternate_are_refused_some_levels_past_the_limit(first: int) -> None:
    """Up to it they pass, four levels past it they do not."""
    for depth, fits in ((DEPTH_MAX, True), (DEPTH_MAX + 4, False)):
        kinds = [(ARRAYS, OBJECTS)[(first + level) % 2] for level in range(depth)]
        document = "".join(kind[0] for kind in kinds) + "1" + "".join(kind[1] for kind in reversed(kinds))
        json.loads(document)
        if fits:
            check_depth(document.encode())
        else:
            with pytest.raises(BadInput, match="deep"):
                check_depth(document.encode())


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
