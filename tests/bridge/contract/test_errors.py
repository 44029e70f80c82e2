"""Errors: their codes, what goes with them, and what they say."""

from __future__ import annotations

import pytest

from queuebell.bridge.contract import errors
from queuebell.bridge.contract.errors import (
    BadInput,
    BadQueueReference,
    NotAllowed,
    Overloaded,
    QueuebellError,
    StoreUnavailable,
    UnknownOutcome,
    named,
    said,
)
from queuebell.bridge.contract.headers import (
    HEADERS_MAX,
    checked_headers,
    readable_headers,
)
from queuebell.bridge.contract.jobs import (
    BOUNDS_S,
    CLASSES_MAX,
    COUNT_MAX,
    HANDLERS_MAX,
    NO_JOBS,
    NOTHING,
    OTHER,
    Jobs,
    Spread,
    add,
    label,
    quantile,
)
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.contract.partitioning import Partitions, parse_partitions
from queuebell.bridge.contract.wire import ListenerHeartbeat, QueueBeat, decode_up, encode_frame


class Silent(Exception):
    """An error of somebody else's, whose text cannot be made."""

    def __str__(self) -> str:
        """Fail as foreign code does."""
        raise KeyError("x")


@pytest.mark.parametrize(
    ("error", "text", "name"),
    [
        (ValueError("no"), "no", "ValueError: no"),
        (ValueError(), "", "ValueError"),
        (KeyError("a"), "'a'", "KeyError: 'a'"),
        (Silent(), "(no error text: KeyError)", "Silent: (no error text: KeyError)"),
        (BadInput("bad_json", "what is wrong"), "what is wrong", "BadInput: what is wrong"),
        (Overloaded("full", 3.0), "full", "Overloaded: full"),
    ],
)
def test_an_error_is_said_with_and_without_its_type(error: Exception, text: str, name: str) -> None:
    """One whose own text cannot be made costs nobody the rest."""
    assert (said(error), named(error)) == (text, name)


def test_each_code_has_its_status() -> None:
    """The table of the interface; what it does not list is our own fault."""
    found = BadInput("too_large", "long")
    assert (found.code, found.status) == ("too_large", 413)
    assert (BadQueueReference("x").code, BadQueueReference("x").status) == ("bad_queue_reference", 400)
    assert BadInput("of a later version", "x").status == 500
    assert QueuebellError("x").status == 500


def test_a_store_says_when_to_come_again() -> None:
    """Or does not."""
    assert (StoreUnavailable("away", 2.5).retry_after, str(StoreUnavailable("away", 2.5))) == (2.5, "away")
    assert (UnknownOutcome().retry_after, str(UnknownOutcome())) == (None, "")


def test_every_code_that_is_raised_stands_in_the_table() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, QueuebellError)]
    assert len(kinds) > 15
    for kind in kinds:
        assert kind.code in errors.STATUS_BY_CODE


def test_a_name_that_is_none_is_repeated_wherever_it_was_given() -> None:
    for read in (parse_reference, parse_partitions, lambda given: Partitions(given, 2)):
        with pytest.raises(BadQueueReference) as refused:
            read("no reference")
        assert refused.value.__notes__ == ["given: 'no reference'"]


@pytest.mark.parametrize("code", ["unauthenticated", "forbidden"])
def test_who_is_not_allowed_is_told_by_the_bridges_own_code(code: str) -> None:
    error = NotAllowed(code, "'put' is not granted on a/y")
    assert (error.code, str(error)) == (code, "'put' is not granted on a/y")


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
    with pytest.raises(BadInput, match="the name of a header must be 1 to 128 of") as refused:
        checked_headers({name: "value", "b": "c"})
    assert refused.value.code == "bad_parameter"
    assert readable_headers([(name, "value"), ("b", "c")]) == {"b": "c"}  # type: ignore[list-item]


@pytest.mark.parametrize("value", NO_VALUES, ids=short)
def test_what_is_no_value_is_refused_and_not_read(value: object) -> None:
    """A value is text of UTF-8 in which nothing controls anything."""
    with pytest.raises(BadInput, match="the value of a header must be text without control characters") as refused:
        checked_headers({"a": value, "b": "c"})
    assert refused.value.code == "bad_parameter"
    assert readable_headers([("a", value), ("b", "c")]) == {"b": "c"}  # type: ignore[list-item]


def test_names_are_kept_in_lower_case() -> None:
    """The same name in two cases is one name: of ours it is refused, of a stranger's the first counts."""
    name = "X" * 128
    assert checked_headers({"Trace-Parent": "A", name: "", "0.a_b-c": "Z"}) == {
        "trace-parent": "A", name.lower(): "", "0.a_b-c": "Z",
    }  # fmt: skip
    with pytest.raises(BadInput, match="duplicate header name") as refused:
        checked_headers({"a": "1", "A": "2"})
    assert refused.value.code == "bad_parameter"
    assert readable_headers([("a", "1"), ("A", "2"), ("B", "3")]) == {"a": "1", "b": "3"}


@pytest.mark.parametrize("given", [None, [], [("a", "b")], "a", 7, {("a", "b")}])
def test_headers_are_names_with_values(given: object) -> None:
    with pytest.raises(BadInput, match="names and values") as refused:
        checked_headers(given)
    assert refused.value.code == "bad_parameter"


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
    "wrong",
    [
        {"": NO_JOBS},
        {"x" * 129: NO_JOBS},
        {"m:\x1b[2J": NO_JOBS},
        {f"m:f{number}": NO_JOBS for number in range(HANDLERS_MAX + 1)},
        {"m:f": Jobs({"done": -1})},
        {"m:f": Jobs({"done": COUNT_MAX + 1})},
        {"m:f": Jobs({str(number): 1 for number in range(CLASSES_MAX + 1)})},
        {"m:f": Jobs({}, {"": 1})},
        {"m:f": Jobs({}, {"x" * 65: 1})},
        {"m:f": Jobs({}, {"a\nb": 1})},
        {"m:f": Jobs({}, {str(number): 1 for number in range(CLASSES_MAX + 2)})},
        {"m:f": Jobs({}, {}, -1)},
        {"m:f": Jobs({}, {}, 0, -1)},
        {"m:f": Jobs(handling=Spread([1] * (len(BOUNDS_S) + 2)))},
        {"m:f": Jobs(handling=Spread([-1, 2]))},
        {"m:f": Jobs(waiting=Spread([1], -1))},
    ],
)
def test_what_no_listener_tells_is_refused(wrong: dict[str, Jobs]) -> None:
    """Names too many, too long or not printable, and numbers out of their range are the sender's fault."""
    with pytest.raises(BadInput, match=r"^jobs: "):
        decode_up(encode_frame(ListenerHeartbeat(7, {"a/b": QueueBeat(jobs=wrong)})))


def test_the_limits_themselves_are_let_in() -> None:
    classes = {f"{number:064}": COUNT_MAX for number in range(CLASSES_MAX)} | {OTHER: 1}
    most = Jobs(failures=classes, in_flight=COUNT_MAX, handling=Spread([1] * (len(BOUNDS_S) + 1), COUNT_MAX))
    told = ListenerHeartbeat(7, {"a/b": QueueBeat(jobs={f"{n:0128}": most for n in range(HANDLERS_MAX)})})
    assert decode_up(encode_frame(told)) == told


def test_names_are_bounded_and_nothing_is_lost() -> None:
    """Beyond 20 handlers, and 20 classes of failure of one, counts go on as other."""
    sums: dict[str, Jobs] = {}
    for number in range(HANDLERS_MAX + 5):
        add(sums, f"m:f{number}", Jobs({"done": 1}))
    assert sums[OTHER] == Jobs({"done": 5})
    add(sums, "m:f0", Jobs({}, {f"E{number}": 1 for number in range(CLASSES_MAX - 1)}))
    add(sums, "m:f0", Jobs({}, {"F": 2, "G": 3, "H": 4}))
    failures = sums["m:f0"].failures
    assert (len(failures), failures["F"], failures[OTHER]) == (CLASSES_MAX + 1, 2, 7)


def test_quantiles() -> None:
    """A quantile is the bound of the bucket that holds it."""
    assert quantile(NOTHING, 0.5) is None
    spread = Spread([0, 5, 4, 0, 1])
    assert [quantile(spread, part) for part in (0.0, 0.5, 0.51, 0.9, 0.95, 1.0)] == [
        0.005, 0.005, 0.01, 0.01, 0.05, 0.05,
    ]  # fmt: skip
    assert quantile(Spread([0] * 16 + [1]), 0.5) == float("inf")


def test_a_label_is_printable_and_short() -> None:
    """Whatever a program calls its handlers, the name does no harm on a terminal, and is never empty."""
    assert label("m:\x1b[2Jf", 128) == "m:?[2Jf"
    assert label("x" * 200, 128) == "x" * 128
    assert label("", 128) == label("\udc80", 128) == "?"
    assert label("ü" * 200, 65) == "ü" * 32
