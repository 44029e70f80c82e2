"""The facts that travel with a buried message: nothing of its body is lost or altered, whatever fits."""

from __future__ import annotations

import binascii
import datetime
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

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
    facts,
    glimpse,
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


def written(body: bytes = b"x", limit: int = LIMIT, burial: Burial = BURIAL, **changes: Any) -> bytes:
    """Write a burial that fits, with some of its facts changed."""
    travels = write_burial(msgspec.structs.replace(burial, **changes), body, limit)
    assert travels is not None
    return travels


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
    travels = written(text.encode(), 1 << 20, burial)
    assert travels.split(b"\n", 1)[0].decode().isprintable()
    assert travels.endswith(text.encode())


def test_facts_come_back_as_they_were() -> None:
    """All of them, with a body that is readable as it stands."""
    travels = written(b'{"order": 7}')
    assert travels.endswith(b'\n{"order": 7}')
    assert read_burial(travels) == (BURIAL, b'{"order": 7}')
    assert opened(travels) == (BURIAL, b'{"order": 7}')
    assert opened(b"plain") == (None, b"plain")


def ever_shorter(burial: Burial, body: bytes) -> Iterator[bytes]:
    """Yield what is written without a limit, and then each time what fits one byte less."""
    limit = LIMIT
    while (travels := write_burial(burial, body, limit)) is not None:
        assert len(travels) <= limit
        yield travels
        limit = len(travels) - 1


def test_less_is_told_where_not_all_fits() -> None:
    """History goes first, then the trace, then the rest of a long reason; a body is compressed only after that."""
    burial = msgspec.structs.replace(BURIAL, trace="t" * 3000, reason="r" * 900)
    whole = written(b"x" * 2000, burial=burial)
    kept: list[tuple[bool, int, int, bool]] = []
    for travels in ever_shorter(burial, b"x" * 2000):
        facts = read_burial(travels)[0]
        kept.append((len(facts.history) > 0, len(facts.trace or ""), len(facts.reason), travels.endswith(b"x" * 2000)))
    assert kept[0] == (True, 3000, 900, True)
    plain = [state[:3] for state in kept if state[3]]
    packed = [state[:3] for state in kept if not state[3]]
    assert plain == [(True, 3000, 900), (False, 3000, 900), (False, 1024, 900), (False, 0, 900), (False, 0, 120)]
    assert packed[-1] == (False, 0, 120)
    assert write_burial(burial, b"x" * 2000, len(whole) - 1, shorten=False) is None


@pytest.mark.parametrize("body", [b"x" * 2000, b"\xff" * 2000])
def test_nothing_is_left_out_where_that_is_not_asked_for(body: bytes) -> None:
    """Neither of the facts nor by another way to write the body, however much of either could be spared."""
    many = tuple(Attempt(number, NOON, "no") for number in range(HISTORY_MAX))
    burial = msgspec.structs.replace(BURIAL, history=many)
    whole = write_burial(burial, body, LIMIT, shorten=False)
    assert whole is not None
    assert read_burial(whole) == (burial, body)
    for limit in (len(whole) - 1, len(whole) - 200, len(whole) - 1500):
        assert write_burial(burial, body, limit) is not None
        assert write_burial(burial, body, limit, shorten=False) is None


def test_facts_are_bounded() -> None:
    """However much a listener knows, the newest is kept, and no more than so much of it."""
    many = tuple(Attempt(number, NOON, "no") for number in range(1, 100))
    told = {"history": many, "trace": "old\n" * 9000 + "newest", "reason": "r" * 9000}
    facts = read_burial(written(b"", 1 << 20, **told))[0]
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
    travels = written(noise)
    assert travels.isascii()
    head = len(travels) - len(noise) * 4 // 3
    assert read_burial(written(noise, len(noise) + head // 2))[1] == noise


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
    travels = written(b"body", earlier=(before,))
    assert old in travels
    damaged = travels.replace(old, new, 1)
    with pytest.raises(BadBurial):
        read_burial(damaged)
    assert opened(damaged) == (None, damaged)


@pytest.mark.parametrize("count", [10**4_299, 2**53 + 1, -1], ids=["4300 digits", "beyond exact", "negative"])
@pytest.mark.parametrize("name", ["attempts", "burials", "attempt", "size", "earlier"])
def test_a_strangers_count_is_bounded(name: str, count: int) -> None:
    """No count that a stranger wrote keeps the message from being buried: beyond the bound its body is any other."""
    before = Earlier("billing/before", "16", NOON, NOON, "no", 6)
    travels = written(b"body", burials=7, attempts=5, earlier=(before,))
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
    assert opened(written(body, burial=after(BURIAL, found))) == (BURIAL, forged)


def test_the_largest_counts_are_buried_again() -> None:
    """A stranger's counts at the bound can be added to, written and read again."""
    most = 2**53
    found, body = opened(written(b"body", burials=most, attempts=most))
    assert found is not None
    again = after(BURIAL, found)
    assert again.burials == most
    assert opened(written(body, burial=again)) == (again, b"body")


@given(st.binary())
def test_no_body_breaks_the_reader(tail: bytes) -> None:
    """Whatever follows the magic, it is a burial or a plain body."""
    body = MAGIC + b"1 " + tail
    assert opened(body) == (None, body)


def test_nesting_and_bombs_are_refused() -> None:
    """Neither a thousand brackets nor a body that unpacks to more than it says costs anything."""
    deep = MAGIC + b'1 {"x":' + b"[" * 100_000 + b"\n"
    assert opened(deep) == (None, deep)
    packed = written(b"\xff" * 60_000, 2_000)
    liar = packed.replace(b'"size":60000', b'"size":600')
    assert opened(liar) == (None, liar)


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


def wide(length: int) -> str:
    """Return text whose beginning and end can be told."""
    return "".join(chr(0x41 + number % 26) for number in range(length))


@pytest.mark.parametrize(
    ("name", "most", "last"),
    [("id", REASON_MAX, False), ("reason", REASON_MAX, False), ("error", 120, False), ("trace", TRACE_MAX, True),
     ("traceparent", 120, False), ("listener", 256, False)],
)  # fmt: skip
def test_each_text_is_kept_to_its_bound(name: str, most: int, last: bool) -> None:
    """Whole up to that; beyond it the beginning and three dots, of a trace the end after them."""
    for length in (most, most + 1):
        text = wide(length)
        found = getattr(read_burial(written(**{name: text}))[0], name)
        if length == most:
            assert found == text
        else:
            assert found == ("...\n" + text[-(most - 4) :] if last else text[: most - 3] + "...")
    if name not in {"id", "reason"}:
        assert getattr(read_burial(written(**{name: None}))[0], name) is None


@pytest.mark.parametrize("name", ["id", "reason", "failure", "error", "trace", "traceparent", "listener"])
def test_no_terminal_obeys_what_a_burial_says(name: str) -> None:
    """What is not printable is an escape, in each text and in those of history and earlier burials; lines stay."""
    said, shown = "é\x1b[2J\n\t\u202e\ud800x", "é\\x1b[2J\n\t\\u202e\\ud800x"
    first = Earlier("a/b", said, NOON, NOON, said, 2, said)
    found = read_burial(written(**{name: said}, history=(Attempt(1, NOON, said),), earlier=(first,)))[0]
    assert getattr(found, name) == shown
    assert found.history == (Attempt(1, NOON, shown),)
    assert found.earlier == (Earlier("a/b", shown, NOON, NOON, shown, 2, shown),)


def test_facts_lose_ever_more() -> None:
    """All, two failed attempts and one burial, none, a quarter of the trace, no trace, the shortest; in this order."""
    many = tuple(Attempt(number, NOON, "no") for number in range(20))
    old = tuple(Earlier("a/b", str(number), NOON, NOON, "no", 2) for number in range(10))
    burial = msgspec.structs.replace(
        BURIAL, history=many, earlier=old, trace=wide(4096), reason=wide(900), listener="l" * 200, traceparent="t" * 100
    )
    states = [read_burial(travels)[0] for travels in ever_shorter(burial, b"x")]
    assert [
        (len(f.history), len(f.earlier), len(f.trace or ""), len(f.reason), f.listener is None, f.traceparent is None)
        for f in states
    ] == [
        (16, 8, 4096, 900, False, False),
        (2, 1, 4096, 900, False, False),
        (0, 0, 4096, 900, False, False),
        (0, 0, 1024, 900, False, False),
        (0, 0, 0, 900, False, False),
        (0, 0, 0, 120, True, True),
    ]
    assert (states[0].history, states[0].earlier) == (many[-16:], old[-8:])
    assert (states[1].history, states[1].earlier) == (many[-2:], old[-1:])
    assert states[3].trace == "...\n" + wide(4096)[-1020:]
    assert states[5].reason == wide(900)[:117] + "..."
    assert states[4].trace is None


@pytest.mark.parametrize("body", [b"", b"x" * 50, b"\xff" * 50])
def test_a_burial_fits_its_limit_to_the_byte(body: bytes) -> None:
    """As long as the limit it is written as it is; one byte less, and something has to give."""
    whole = written(body)
    assert write_burial(BURIAL, body, len(whole)) == whole
    assert write_burial(BURIAL, body, len(whole), shorten=False) == whole
    assert write_burial(BURIAL, body, len(whole) - 1, shorten=False) is None
    assert write_burial(BURIAL, body, len(whole) - 1) != whole
    assert write_burial(BURIAL, body, 0) is None


def test_the_written_form() -> None:
    """The very text: it is on queues now, and stays readable."""
    least = Burial("a/b", "17", NOON, NOON, "no", 2)
    moment = '"2026-11-21T12:00:00Z"'
    facts = f'{{"queue":"a/b","id":"17","inserted_at":{moment},"buried_at":{moment},"reason":"no","attempts":2}}'
    for body, rest, encoding in (
        (b"x", b"x", "identity"),
        (b"\xff", b"/w==", "base64"),
    ):
        head = f'queuebell-burial:1 {{"burial":{facts},"body":{{"size":1,"encoding":"{encoding}"}}}}\n'
        assert write_burial(least, body, LIMIT) == head.encode() + rest
        assert read_burial(head.encode() + rest) == (least, body)
    assert b'"size":9000,"encoding":"zlib"}}\n' in written(b"\xff" * 9000, 1000, least)
    noise = bytes((7 * n * n + n // 3) % 251 for n in range(600)) + b"\xff"
    assert written(noise, 600 + 260, least).endswith(b'"encoding":"identity"}}\n' + noise)


def headed(size: int, encoding: str) -> bytes:
    """Return the line of facts of a body of this size and encoding, as another writer may have made it."""
    line = written(b"x").removesuffix(b"x")
    return line.replace(b'"size":1,"encoding":"identity"', b'"size":%d,"encoding":"%s"' % (size, encoding.encode()))


@pytest.mark.parametrize(
    ("payload", "encoding"), [(b"", "identity"), (b"", "base64"), (binascii.b2a_base64(zlib.compress(b"")), "zlib")]
)
def test_a_body_without_a_byte_is_read_in_every_encoding(payload: bytes, encoding: str) -> None:
    """Other writers than ours may choose any of them for it."""
    assert opened(headed(0, encoding) + payload.rstrip(b"\n")) == (BURIAL, b"")


@pytest.mark.parametrize("payload", [b"/w==\n", b"/w==/w==", b"\n/w==", b"/-w==", b"/w==="])
def test_base64_is_taken_as_it_was_written_or_not_at_all(payload: bytes) -> None:
    """No byte in it is passed over: what a store has added or changed is damage."""
    assert opened(headed(1, "base64") + b"/w==") == (BURIAL, b"\xff")
    damaged = headed(1, "base64") + payload
    assert opened(damaged) == (None, damaged)


def test_a_bomb_is_not_unpacked() -> None:
    """No more memory is taken than the body says it needs, whatever a stranger has packed."""
    bomb = headed(600, "zlib") + binascii.b2a_base64(zlib.compress(bytes(1 << 24), 1), newline=False)
    tracemalloc.start()
    try:
        assert opened(bomb) == (None, bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (b"queuebell-burial:2 {}\nx", "a burial of a version that is not known here, or one that was cut off"),
        (b"queuebell-burial:1 {}", "a burial of a version that is not known here, or one that was cut off"),
        (b"queuebell-burial:1 {}\nx", "a burial that cannot be read: Object missing required field `burial`"),
        (None, "a burial whose body is not as long as it says"),
        (
            headed(1, "rot13") + b"k",
            "a burial with an encoding or a size that is not known here; is this worker too old?",
        ),
        (
            headed(1024 * 1024 + 1, "zlib") + b"/w==",
            "a burial with an encoding or a size that is not known here; is this worker too old?",
        ),
    ],
)
def test_what_is_wrong_with_a_burial_is_said(damaged: bytes | None, words: str) -> None:
    """To whoever reads it on purpose."""
    if damaged is None:
        damaged = written() + b"y"
    with pytest.raises(BadBurial) as refusal:
        read_burial(damaged)
    assert (refusal.value.code, str(refusal.value)) == ("bad_parameter", words)


@pytest.mark.parametrize(("payload", "encoding"), [(b"/w=", "base64"), (b"////", "zlib"), (b"/w=", "zlib")])
def test_how_a_body_is_damaged_is_said(payload: bytes, encoding: str) -> None:
    """In the words of what could not unpack it."""
    with pytest.raises(BadBurial, match=r"^a burial whose body is damaged: .+"):
        read_burial(headed(1, encoding) + payload)


def test_an_earlier_burial_keeps_all_its_facts() -> None:
    """Oldest first, before those that the new one brings; counts add up, to a bound."""
    before = msgspec.structs.replace(
        BURIAL, id="1", reason="first", attempts=9, failure="poisoned", burials=4,
        inserted_at=NOON - datetime.timedelta(1), earlier=(Earlier("a/b", "0", NOON, NOON, "zero", 3),),
    )  # fmt: skip
    own = Earlier("a/b", "5", NOON, NOON, "own", 3)
    found = after(msgspec.structs.replace(BURIAL, burials=2, earlier=(own,)), before)
    assert found.earlier == (
        before.earlier[0],
        Earlier("billing/orders", "1", before.inserted_at, NOON, "first", 9, "poisoned"),
        own,
    )
    assert (found.burials, found.reason) == (6, BURIAL.reason)
    assert after(msgspec.structs.replace(BURIAL, burials=2**53), before).burials == 2**53


@pytest.mark.parametrize(
    ("here", "queue", "wanted", "words"),
    [
        ("billing/graves", None, None,
         "billing/graves tells no queue to replay to, and neither does the message; name one"),
        ("billing/graves", "elsewhere/orders", None,
         "a message of billing/graves is not replayed to another account; name a queue of this"),
        ("billing/orders", "billing/orders", None,
         "a message of billing/orders is not replayed to where it is; name another queue"),
    ],
)  # fmt: skip
def test_a_replay_without_a_target_says_what_to_do(
    here: str, queue: str | None, wanted: str | None, words: str
) -> None:
    """With the queue's name, as a wrong parameter."""
    burial = None if queue is None else msgspec.structs.replace(BURIAL, queue=queue)
    with pytest.raises(BadInput) as refusal:
        replay_target(here, burial, wanted)
    assert (refusal.value.code, str(refusal.value)) == ("bad_parameter", words)


@pytest.mark.parametrize(
    ("text", "most", "kept"),
    [
        ("a\nb", 3, "a\nb"), ("a\nb", 10, "a\nb"), ("first line\nsecond\nthird", 16, "...\nthird"),
        ("x" * 100, 16, "...\n" + "x" * 12), ("abcdefgh", 8, "abcdefgh"), ("abcdefghi", 8, "...\nfghi"),
        ("ab\ncdefgh", 8, "...\nefgh"), ("abcdef\nhi", 8, "...\nhi"), ("abcdefgh\n", 8, "...\nfgh\n"),
        ("abcde\nghi", 8, "...\nghi"), ("abcd\nfghi", 8, "...\nfghi"), ("abcdefg\ni", 8, "...\ni"),
        ("abcdef\nh\nj\nl", 10, "...\nh\nj\nl"), ("abcde", 4, "...\n"),
    ],
)  # fmt: skip
def test_the_end_of_a_traceback(text: str, most: int, kept: str) -> None:
    """From the beginning of the first line that begins within it, else the end of one; empty only without room."""
    assert newest(text, most) == kept
    assert len(kept) <= most


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


def test_a_glimpse_inflates_no_more_than_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a body of a megabyte in a few bytes, and reading the facts inflates nothing."""
    bomb = written(bytes(1 << 20))
    made: list[int] = []
    unpacking = zlib.decompressobj

    class Counted:
        def decompress(self, data: bytes, most: int) -> bytes:
            made.append(len(out := unpacking().decompress(data, most)))
            return out

    monkeypatch.setattr(zlib, "decompressobj", Counted)
    assert facts(bomb) == BURIAL
    assert made == []
    assert glimpse(bomb, 100) == (BURIAL, bytes(100), 1 << 20)
    assert sum(made) <= 101


def test_facts_stand_before_a_damaged_body() -> None:
    """They can be read where the body cannot; a glimpse of a short body notices."""
    damaged = written(b"body").replace(b'"identity"', b'"zlib"')
    assert facts(damaged) == BURIAL
    assert glimpse(damaged, 100) == (None, damaged[:100], len(damaged))
    assert facts(damaged.replace(b"burial:1", b"burial:2")) is None
