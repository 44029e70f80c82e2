"""The facts that travel with a buried message: nothing of its body is lost or altered, whatever fits."""

from __future__ import annotations

import binascii
import datetime
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.burial import (
    EARLIER_MAX,
    HISTORY_MAX,
    MAGIC,
    REASON_MAX,
    TRACE_MAX,
    Attempt,
    BadBurial,
    Burial,
    Earlier,
    after,
    is_burial,
    newest,
    opened,
    read_burial,
    replay_target,
    write_burial,
)
from bridge.contract.errors import BadInput

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

texts = st.text(st.characters(codec=None), max_size=300)
moments = st.datetimes(timezones=st.just(datetime.UTC))
attempts = st.builds(Attempt, st.integers(1, 99), moments, texts)
references = st.sampled_from(["billing/orders", "a/b", f"{'a' * 80}/{'b' * 80}"])
earlier = st.builds(Earlier, references, texts, moments, moments, texts, st.integers(1, 99), texts)
burials = st.builds(
    Burial,
    references,
    texts,
    moments,
    moments,
    texts,
    st.integers(1, 99),
    texts,
    st.none() | texts,
    st.none() | st.text(st.characters(codec=None), max_size=2 * TRACE_MAX),
    st.none() | texts,
    st.none() | texts,
    st.integers(1, 9),
    st.lists(attempts, max_size=2 * HISTORY_MAX).map(tuple),
    st.lists(earlier, max_size=2 * EARLIER_MAX).map(tuple),
)
bodies = (
    st.binary(max_size=2000)
    | st.text(max_size=500).map(str.encode)
    | st.builds(bytes.__mul__, st.binary(min_size=1, max_size=9), st.integers(1, 9000))
    | st.binary(max_size=50).map(lambda tail: MAGIC + b"1 " + tail)
)


@given(burials, bodies, st.integers(0, LIMIT))
def test_nothing_of_a_body_is_lost_or_altered(burial: Burial, body: bytes, limit: int) -> None:
    """Whatever the facts, the body and the limit: what fits gives the very bytes back, and what does not says so."""
    travels = write_burial(burial, body, limit)
    if travels is not None:
        assert len(travels) <= limit
        assert is_burial(travels)
        facts, original = read_burial(travels)
        assert original == body
        assert (facts.queue, facts.attempts, facts.burials) == (burial.queue, burial.attempts, burial.burials)
        assert (facts.inserted_at, facts.buried_at) == (burial.inserted_at, burial.buried_at)
        assert write_burial(facts, body, limit) is not None, "read facts can be written again, for a replay"
    else:
        assert len(body) + 500 > limit - len(burial.queue) - 12 * (len(burial.id) + 120 + len(burial.failure) + 120)


@given(burials, st.text(max_size=200))
def test_what_travels_passes_through_every_store(burial: Burial, text: str) -> None:
    """The line of facts holds no control character and no line feed, whatever an exception said."""
    travels = write_burial(burial, text.encode(), 1 << 20)
    assert travels is not None
    assert travels.split(b"\n", 1)[0].decode().isprintable()
    assert travels.endswith(text.encode())


def test_facts_come_back_as_they_were() -> None:
    """All of them, with a body that is readable as it stands."""
    travels = write_burial(BURIAL, b'{"order": 7}', LIMIT)
    assert travels is not None
    assert travels.endswith(b'\n{"order": 7}')
    assert read_burial(travels) == (BURIAL, b'{"order": 7}')
    assert opened(travels) == (BURIAL, b'{"order": 7}')
    assert opened(b"plain") == (None, b"plain")


def test_less_is_told_where_not_all_fits() -> None:
    """History goes first, then the trace, then the rest of a long reason; a body is compressed only after that."""
    burial = msgspec.structs.replace(BURIAL, trace="t" * 3000, reason="r" * 900)
    whole = write_burial(burial, b"x" * 2000, LIMIT)
    assert whole is not None
    kept: list[tuple[bool, int, int, bool]] = []
    for limit in range(len(whole), 100, -1):
        travels = write_burial(burial, b"x" * 2000, limit)
        if travels is None:
            break
        facts = read_burial(travels)[0]
        state = (len(facts.history) > 0, len(facts.trace or ""), len(facts.reason), travels.endswith(b"x" * 2000))
        if not kept or kept[-1] != state:
            kept.append(state)
    assert kept[0] == (True, 3000, 900, True)
    plain = [state[:3] for state in kept if state[3]]
    packed = [state[:3] for state in kept if not state[3]]
    assert plain == [(True, 3000, 900), (False, 3000, 900), (False, 1024, 900), (False, 0, 900), (False, 0, 120)]
    assert packed[-1] == (False, 0, 120)
    assert write_burial(burial, b"x" * 2000, len(whole) - 1, shorten=False) is None


def test_facts_are_bounded() -> None:
    """However much a listener knows, the newest is kept, and no more than so much of it."""
    many = tuple(Attempt(number, NOON, "no") for number in range(1, 100))
    burial = msgspec.structs.replace(BURIAL, history=many, trace="old\n" * 9000 + "newest", reason="r" * 9000)
    facts = read_burial(write_burial(burial, b"", 1 << 20) or b"")[0]
    assert facts.history == many[-HISTORY_MAX:]
    assert len(facts.trace or "") <= TRACE_MAX
    assert (facts.trace or "").endswith("\nnewest")
    assert len(facts.reason) == REASON_MAX


def test_a_moment_without_its_offset_is_not_written() -> None:
    """It could not be read again, and a handler would be given the facts for a body."""
    assert write_burial(msgspec.structs.replace(BURIAL, inserted_at=NOON.replace(tzinfo=None)), b"x", LIMIT) is None


def test_bytes_are_readable_where_they_fit() -> None:
    """What is no text travels as base64, compressed where that is too long, and as it is where nothing helps."""
    noise = bytes((7 * n * n + n // 3) % 251 for n in range(3000)) + b"\xff"
    travels = write_burial(BURIAL, noise, LIMIT)
    assert travels is not None
    assert travels.isascii()
    head = len(travels) - len(noise) * 4 // 3
    assert read_burial(write_burial(BURIAL, noise, len(noise) + head // 2) or b"")[1] == noise


def test_a_burial_knows_of_those_before() -> None:
    """Buried, replayed and buried again: both stand there, and how often in all; the oldest are dropped in time."""
    first = BURIAL
    second = after(msgspec.structs.replace(BURIAL, id="18", reason="again"), first)
    assert second.burials == 2
    assert [(one.id, one.reason) for one in second.earlier] == [("17", BURIAL.reason)]
    many = second
    for _ in range(20):
        many = after(BURIAL, many)
    assert many.burials == 22
    assert len(many.earlier) == EARLIER_MAX
    assert after(BURIAL, None) == BURIAL


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
    travels = write_burial(msgspec.structs.replace(BURIAL, earlier=(before,)), b"body", LIMIT)
    assert travels is not None
    assert old in travels
    damaged = travels.replace(old, new, 1)
    with pytest.raises(BadBurial):
        read_burial(damaged)
    assert opened(damaged) == (None, damaged)


@pytest.mark.parametrize("count", [10**4_299, 2**53 + 1, -1], ids=["4300 digits", "beyond exact", "negative"])
@pytest.mark.parametrize("name", ["attempts", "burials", "attempt", "size", "earlier"])
def test_a_strangers_count_is_bounded(name: str, count: int) -> None:
    """No count that a stranger wrote keeps the message from being buried: beyond the bound its body is any other."""
    facts = msgspec.structs.replace(
        BURIAL, burials=7, attempts=5, earlier=(Earlier("billing/before", "16", NOON, NOON, "no", 6),)
    )
    travels = write_burial(facts, b"body", LIMIT)
    assert travels is not None
    old = {
        "attempts": b'"attempts":5',
        "burials": b'"burials":7',
        "attempt": b'"attempt":1',
        "size": b'"size":4',
        "earlier": b'"attempts":6',
    }[name]
    assert travels.count(old) == 1
    forged = travels.replace(old, old[:-1] + str(count).encode())
    found, body = opened(forged)
    assert (found, body) == (None, forged)
    buried = write_burial(after(BURIAL, found), body, LIMIT)
    assert buried is not None
    assert opened(buried) == (BURIAL, forged)


def test_the_largest_counts_are_buried_again() -> None:
    """A stranger's counts at the bound can be added to, written and read again."""
    most = 2**53
    travels = write_burial(msgspec.structs.replace(BURIAL, burials=most, attempts=most), b"body", LIMIT)
    assert travels is not None
    found, body = opened(travels)
    assert found is not None
    again = after(BURIAL, found)
    assert again.burials == most
    buried = write_burial(again, body, LIMIT)
    assert buried is not None
    assert opened(buried) == (again, b"body")


@given(st.binary())
def test_no_body_breaks_the_reader(tail: bytes) -> None:
    """Whatever follows the magic, it is a burial or a plain body."""
    body = MAGIC + b"1 " + tail
    assert opened(body) == (None, body)


def test_nesting_and_bombs_are_refused() -> None:
    """Neither a thousand brackets nor a body that unpacks to more than it says costs anything."""
    deep = MAGIC + b'1 {"x":' + b"[" * 100_000 + b"\n"
    assert opened(deep) == (None, deep)
    packed = write_burial(BURIAL, b"\xff" * 60_000, 2_000)
    assert packed is not None
    liar = packed.replace(b'"size":60000', b'"size":600')
    assert opened(liar) == (None, liar)


def test_no_small_burial_opens_to_much() -> None:
    """Up to what a queue elsewhere may hold, and no byte more: a listener holds many messages at once."""
    most = b"\xff" * 1024 * 1024
    travels = write_burial(BURIAL, most, LIMIT)
    assert travels is not None
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


def test_the_newest_lines_of_a_traceback_are_kept() -> None:
    """Whole lines where there are any, and never more than allowed."""
    assert newest("a\nb", 10) == "a\nb"
    assert newest("first line\nsecond\nthird", 16) == "...\nthird"
    assert len(newest("x" * 100, 16)) == 16
