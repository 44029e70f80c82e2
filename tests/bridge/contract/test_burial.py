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
    newest,
    opened,
    read_burial,
    replay_target,
    write_burial,
)
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


def test_facts_come_back_as_they_were() -> None:
    """All of them, with a body that is readable as it stands."""
    travels = written(b'{"order": 7}')
    assert travels.endswith(b'\n{"order": 7}')
    assert read_burial(travels) == (BURIAL, b'{"order": 7}')
    assert opened(travels) == (BURIAL, b'{"order": 7}')
    assert opened(b"plain") == (None, b"plain")


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


def test_the_largest_counts_are_buried_again() -> None:
    """A stranger's counts at the bound can be added to, written and read again."""
    most = 2**53
    found, body = opened(written(b"body", burials=most, attempts=most))
    assert found is not None
    again = after(BURIAL, found)
    assert again.burials == most
    assert opened(written(body, burial=again)) == (again, b"body")


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


@pytest.mark.parametrize("payload", [b"/w==\n", b"/w==/w==", b"\n/w==", b"/-w==", b"/w==="])
def test_base64_is_taken_as_it_was_written_or_not_at_all(payload: bytes) -> None:
    """No byte in it is passed over: what a store has added or changed is damage."""
    assert opened(headed(1, "base64") + b"/w==") == (BURIAL, b"\xff")
    damaged = headed(1, "base64") + payload
    assert opened(damaged) == (None, damaged)


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


CLAIM = Claim(blob_name("billing/orders", -1, "0" * 32), "a" * 64, 70_000, "zlib")


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
