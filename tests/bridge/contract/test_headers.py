"""Which headers a message may have, and what is read of a stranger's."""

from __future__ import annotations

import pytest

from bridge.contract.errors import BadInput
from bridge.contract.headers import (
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    bytes_of,
    checked_headers,
    headers_in,
    readable_headers,
)
from bridge.queues.base import NewMessage

NO_NAMES = (
    "", " ", "a b", "a:b", "a\n", "\na", "a\r\nb", "a\0", "-a", ".a", "_a", "a/b", "a=b", "ä", "\u212a", "a\u202e",
    "x" * 129, "nats-msg-id", "Nats-Msg-Id", "NATS-", "queuebell-header-a", "Queuebell-X", 7, None, b"a",
)  # fmt: skip
NO_VALUES = (
    "\n", "a\r\nb: c", "\0", "\x1b[31m", "\x7f", "\x85", "\x9b", "\v", "\ud800", "x\udc00", "x" * 65_536 + "\n",
    7, None, b"a", ["a"], {"a": "b"}, True,
)  # fmt: skip


def short(value: object) -> str:
    """Return the name of a case, which is not as long as the longest value."""
    return ascii(value)[:30]


@pytest.mark.parametrize("name", NO_NAMES, ids=short)
def test_what_is_no_name_is_refused_and_not_read(name: object) -> None:
    """A name is a conservative token of ASCII, and none that a server may obey; what was given is not echoed."""
    with pytest.raises(BadInput, match="the name of a header is 1 to 128 of") as refused:
        checked_headers({name: "value", "b": "c"})
    assert refused.value.code == "bad_parameter"
    assert readable_headers([(name, "value"), ("b", "c")]) == {"b": "c"}  # type: ignore[list-item]


@pytest.mark.parametrize("value", NO_VALUES, ids=short)
def test_what_is_no_value_is_refused_and_not_read(value: object) -> None:
    """A value is text of UTF-8 in which nothing controls anything."""
    with pytest.raises(BadInput, match="the value of a header is text without control characters") as refused:
        checked_headers({"a": value, "b": "c"})
    assert refused.value.code == "bad_parameter"
    assert readable_headers([("a", value), ("b", "c")]) == {"b": "c"}  # type: ignore[list-item]


@pytest.mark.parametrize(
    "value", ["", " ", "\t", "a\tb", "<b>", "\u202e\u2028", "雪🛎", "\uffff", "x" * 8191], ids=short
)
def test_any_other_text_is_a_value(value: str) -> None:
    """As it is, with spaces at its ends."""
    assert checked_headers({"a": value}) == {"a": value}
    assert readable_headers([("a", value)]) == {"a": value}


def test_names_are_kept_in_lower_case() -> None:
    """The same name in two cases is one name: of ours it is refused, of a stranger's the first counts."""
    name = "X" * 128
    assert checked_headers({"Trace-Parent": "A", name: "", "0.a_b-c": "Z"}) == {
        "trace-parent": "A", name.lower(): "", "0.a_b-c": "Z",
    }  # fmt: skip
    with pytest.raises(BadInput, match="the name of a header stands twice") as refused:
        checked_headers({"a": "1", "A": "2"})
    assert refused.value.code == "bad_parameter"
    assert readable_headers([("a", "1"), ("A", "2"), ("B", "3")]) == {"a": "1", "b": "3"}


@pytest.mark.parametrize("given", [None, [], [("a", "b")], "a", 7, {("a", "b")}])
def test_headers_are_names_with_values(given: object) -> None:
    """Anything else is refused in words."""
    with pytest.raises(BadInput, match="names and values") as refused:
        checked_headers(given)
    assert refused.value.code == "bad_parameter"


def test_all_bytes_count() -> None:
    """8,192 of UTF-8, those of names among them; one more is refused, and not read while what fits is."""
    full = {"ab": "ß" * 4000, "c": "x" * 189}
    assert bytes_of(full) == HEADERS_BYTES_MAX == 8192
    assert checked_headers(full) == full
    assert readable_headers(full.items()) == full
    for more in ({**full, "c": "x" * 190}, {**full, "e": ""}):
        with pytest.raises(BadInput, match="at most 8192 bytes") as refused:
            checked_headers(more)
        assert refused.value.code == "message_too_large"
    assert readable_headers([("ab", full["ab"]), ("c", "x" * 190), ("d", "x" * 189), ("e", "")]) == {
        "ab": full["ab"], "d": "x" * 189,
    }  # fmt: skip


def test_so_many_headers_and_no_more() -> None:
    """64; of a stranger's the first."""
    full = {f"{number}": "" for number in range(HEADERS_MAX)}
    assert HEADERS_MAX == 64
    assert checked_headers(full) == full
    with pytest.raises(BadInput, match="at most 64 headers") as refused:
        checked_headers({**full, "more": ""})
    assert refused.value.code == "message_too_large"
    assert readable_headers([*full.items(), ("more", "")]) == full


@pytest.mark.parametrize(
    "raw",
    ["", "{", "[]", '"a"', "7", "null", b"\xff", b'{"a": "\xff"}', "[" * 100_000, '{"a": 1e999}', '{"a": {"b": "c"}}'],
    ids=short,
)
def test_what_is_no_json_of_headers_has_none(raw: bytes | str) -> None:
    """Whatever a stranger wrote where ours stand, a message is read."""
    assert headers_in(raw) == {}


def test_headers_are_read_from_json() -> None:
    """As far as they are readable, names in lower case."""
    assert headers_in('{"A": "\\u00fc", "b": 7, "c": "\\n", "a": "2"}') == {"a": "\u00fc"}
    assert headers_in(b'{"a": "\xc3\xbc"}') == {"a": "\u00fc"}


def test_a_message_refuses_what_it_cannot_carry_when_it_is_made() -> None:
    """So that nobody meets it later; what it has is its own, whatever becomes of the mapping given."""
    given = {"A": "b"}
    message = NewMessage("x", headers=given)
    given["c"] = "\n"
    assert message.headers == {"a": "b"}
    assert NewMessage("x").headers == {}
    for wrong in ({"a": "\n"}, [], None, {"a": "x" * HEADERS_BYTES_MAX}):
        with pytest.raises(BadInput):
            NewMessage("x", headers=wrong)  # type: ignore[arg-type]
