"""Settings from three places: who wins, and what an error says."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from queuebell.bridge.contract.errors import BadInput, BadQueueReference, ConfigurationError
from queuebell.bridge.contract.settings import doubtful, parse_toml, resolve
from queuebell.bridge.contract.wire import (
    FRAME_BYTES_MAX,
    LEASES_MAX,
    SUBSCRIPTIONS_MAX,
    decode_down,
    decode_up,
)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    listen: str = "default"
    size: Annotated[int, Meta(ge=1)] = 7
    names: tuple[str, ...] = ()
    loud: bool = False
    limit: float | None = None


def test_what_listen_sets_for_its_commands_is_no_setting() -> None:
    """A command run by `listen --exec` may call queuebell itself."""
    environment = {"QUEUEBELL_ID": "1", "QUEUEBELL_QUEUE": "a/q", "QUEUEBELL_ATTEMPT": "2", "QUEUEBELL_STORE": "x"}
    assert resolve(Sample, environment=environment) == Sample()


def test_toml_errors_name_the_file() -> None:
    with pytest.raises(ConfigurationError, match=r"q\.toml: invalid TOML: .*line 1"):
        parse_toml("a = \nb = 1", "q.toml")


def test_toml_that_is_nested_too_deeply_is_an_error() -> None:
    """A few thousand brackets are no reason for a traceback."""
    with pytest.raises(ConfigurationError, match=r"q\.toml: values are nested"):
        parse_toml("a = " + "[" * 30_000, "q.toml")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"table": {"lisen": 1}}, "configuration: unknown key 'lisen'; did you mean 'listen'?"),
        ({"table": {"zzz": 1}}, "configuration: unknown key 'zzz'; known keys: listen, size, names, loud, limit"),
        ({"table": {"size": "3"}, "source": "q.toml"}, "q.toml: size: must be a whole number, not text"),
        ({"table": {"size": 0}, "source": "q.toml"}, "q.toml: size: must be a whole number, 1 or more"),
        ({"table": {"loud": "true"}, "source": "q.toml"}, "q.toml: loud: must be true or false, not text"),
        ({"table": {"size": True}}, "configuration: size: must be a whole number, not true or false"),
        ({"environment": {"QUEUEBELL_SIZE": "0"}}, "environment QUEUEBELL_SIZE: must be a whole number, 1 or more"),
        (
            {"environment": {"QUEUEBELL_SIZE": "many"}},
            "environment QUEUEBELL_SIZE: must be a whole number, not text",
        ),
        ({"environment": {"QUEUEBELL_SIZ": "1"}}, "environment: unknown QUEUEBELL_SIZ; did you mean QUEUEBELL_SIZE?"),
        ({"options": {"loud": "perhaps"}}, "option --loud: must be true or false, not text"),
        ({"options": {"size": "-1"}}, "option --size: must be a whole number, 1 or more"),
        ({"options": {"names": "a\0,b"}}, "option --names: contains a NUL character"),
        ({"options": {"long_name": 0}}, "option --long-name: must be a whole number, 1 or more"),
        ({"table": {"names": {"deep": "\0"}}}, "configuration: names: contains a NUL character"),
        ({"table": {"names": [{"deep": "\0"}]}, "source": "q.toml"}, "q.toml: names: contains a NUL character"),
        ({"table": {"names": ["a", "\0"]}}, "configuration: names: contains a NUL character"),
        ({"table": {"listen": "a\0b"}}, "configuration: listen: contains a NUL character"),
        ({"environment": {"QUEUEBELL_LISTEN": "\0"}}, "environment QUEUEBELL_LISTEN: contains a NUL character"),
    ],
)
def test_an_error_is_one_sentence(given: dict[str, Any], words: str) -> None:
    """The very words: what is wrong, where it came from, and what was probably meant."""

    class More(Sample, frozen=True, kw_only=True):
        long_name: Annotated[int, Meta(ge=1)] = 1

    with pytest.raises(ConfigurationError) as caught:
        resolve(More if "long_name" in given.get("options", {}) else Sample, **given)
    assert str(caught.value) == words


class _Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    modes: tuple[Literal["on", "off"], ...] = ()


class _Outer(msgspec.Struct):
    each: tuple[_Inner, ...] = ()
    mode: Literal["on", "off"] | None = None
    share: Annotated[float, Meta(gt=0, lt=2)] = 1.0
    word: Annotated[str, Meta(pattern="^a$")] = "a"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"each": 5}, "each: must be a list, not a whole number"),
        ({"each": [{"name": "a"}, "b"]}, "each 2: must be a table, not text"),
        ({"each": [{"name": 1.5}]}, "each 1: name: must be text, not a number"),
        ({"each": [{"name": datetime.date(2026, 1, 1)}]}, "each 1: name: must be text, not a date"),
        ({"each": [{"nam": "a"}]}, "each 1: unknown key 'nam'"),
        ({"each": [{}]}, "each 1: name is missing"),
        ({"each": [{"name": "a", "modes": ["on", "of"]}]}, "each 1: modes 2: 'of' is not a valid value"),
        ({"mode": "of"}, "mode: 'of' is not a valid value; valid are on, off"),
        ({"share": 0}, "share: must be a number, more than 0"),
        ({"share": 2}, "share: must be a number, less than 2"),
        ({"word": "b"}, "word: Expected str matching regex '^a$'"),
    ],
)
def test_what_is_wrong_is_said_without_the_words_of_python(table: dict[str, Any], words: str) -> None:
    """Also deep within tables of which there are several, which are counted from 1."""
    with pytest.raises(ConfigurationError) as caught:
        resolve(_Outer, table=table, source="q.toml")
    assert str(caught.value) == f"q.toml: {words}"


class Lists(msgspec.Struct, frozen=True, kw_only=True):
    maybe: list[str] | None = None


def test_a_list_that_may_be_absent_is_split_too() -> None:
    assert resolve(Lists, options={"maybe": "a,b"}).maybe == ["a", "b"]


def test_a_variable_that_may_be_meant_is_told_with_the_key_that_is_near() -> None:
    """Not those of others, of child processes, of keys that are set, like no key, or refused by `resolve`."""
    given = {
        "QUEUEBELL_SISE": "1",
        "QUEUEBELL_LISTENS": "x",
        "QUEUEBELL_SIZE": "1",
        "LISTENS": "x",
        "QUEUEBELL_ZZZ": "1",
    }
    assert doubtful(Sample, given) == [
        "environment: QUEUEBELL_SISE is not a setting and has no effect; did you mean QUEUEBELL_SIZE?",
    ]


BOOT = "b" * 32
Frame = dict[str, Any]


def hello(**subscription: object) -> Frame:
    """Return a hello whose only queue says this."""
    queues = [{"queue": "a/b", "capacity": 1, **subscription}]
    return {"type": "hello", "instance": "1" * 32, "listener": "x", "queues": queues}


def cover(**fields: object) -> Frame:
    """Return a cover that says this besides."""
    return {"type": "cover", "queue": "a/b", "boot": BOOT, "gen": 1, "age_ms": 0, **fields}


def started(**fields: object) -> Frame:
    """Return a `started` that says this."""
    return {"type": "started", "queue": "a/b", "boot": BOOT, "gen": 1, **fields}


def more(**fields: object) -> Frame:
    """Return a `more` that says this besides."""
    return {"type": "more", "queue": "a/b", **fields}


def room(gen: object = None, **fields: object) -> Frame:
    """Return a `room` that knows of wakes up to ``gen``."""
    return {"type": "room", "queue": "a/b", "free": 1, "gen": gen, **fields}


def beat(**levels: object) -> Frame:
    """Return a heartbeat that says this of its only queue."""
    return {"type": "heartbeat", "stamp": 1, "queues": {"a/b": levels}}


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        *((hello(seen={"boot": boot, "gen": 1}), "seen.boot ") for boot in ("x", BOOT[1:], BOOT + "b", "B" * 32)),
        *(({**hello(), "instance": name}, "instance ") for name in ("1" * 31, "1" * 33, "g" * 32, "X" * 32, "")),
        *((kind(boot=boot), "boot ") for kind in (started, cover) for boot in ("b" * 31, "B" * 32)),
        *(
            (kind(store=text), "store ")
            for kind in (hello, cover)
            for text in ("", "xyz", "no hex", "\u0663", "\u00e9", "a" * 129, "a1\n")
        ),
        *(({**hello(), "listener": name}, "listener ") for name in ("x" * 257, "x\n", "\x1b[2J")),
        ({**hello(), "queues": 2 * [{"queue": "a/b", "capacity": 1}]}, "a hello must not name a queue twice"),
        (beat(failing_ms="long"), "Expected 'int | null', got 'str'"),
        ({"type": "hello"}, "Object missing required field 'instance'"),
        ({"stamp": 1}, "Object missing required field 'type'"),
        ({"type": 7}, "Expected 'str'"),
    ],
)
def test_what_has_not_its_form_is_refused(frame: Frame, field: str) -> None:
    with pytest.raises(BadInput) as refusal:
        decode_up(json.dumps(frame))
    assert refusal.value.code == "bad_parameter"
    assert str(refusal.value).startswith(field)


@pytest.mark.parametrize(
    "frame",
    [
        hello(queue="a"), started(queue="a"), cover(queue="a"), more(queue="a"), room(queue="a"),
        {"type": "heartbeat", "stamp": 1, "queues": {"a": {}}}, {"type": "heartbeat", "stamp": 1, "leases": {"a": []}},
        {"type": "bye", "leases": {"a": []}},
    ],
)  # fmt: skip
def test_a_queue_of_no_frame_goes_unchecked(frame: Frame) -> None:
    """A name travels into topics and logs."""
    with pytest.raises(BadQueueReference):
        decode_up(json.dumps(frame))


@pytest.mark.parametrize(
    ("most", "frame"),
    [
        (SUBSCRIPTIONS_MAX, lambda n: {**hello(), "queues": [{"queue": f"a/{i}", "capacity": 1} for i in range(n)]}),
        (LEASES_MAX, lambda n: {"type": "bye", "leases": {"a/b": [1], "a/c": [1] * (n - 1)}}),
        (LEASES_MAX, lambda n: {"type": "heartbeat", "stamp": 1, "leases": {"a/b": [1], "a/c": [1] * (n - 1)}}),
    ],
)
def test_a_frame_holds_so_much_and_no_more(most: int, frame: Callable[[int], Frame]) -> None:
    """The most is taken; one more is too many, which is said with the number."""
    assert decode_up(json.dumps(frame(most))) is not None
    with pytest.raises(BadInput, match=f"^at most {most} ") as refusal:
        decode_up(json.dumps(frame(most + 1)))
    assert refusal.value.code == "too_many_items"


@pytest.mark.parametrize("decode", [decode_up, decode_down])
@pytest.mark.parametrize("make", [str, str.encode])
def test_a_frame_is_of_64_kib_at_most(decode: Callable[[str | bytes], object], make: Callable[[str], Any]) -> None:
    """Counted in bytes, whichever way it came."""
    whole = '{"type":"bye","x":"é'.ljust(FRAME_BYTES_MAX - 3, "x") + '"}'
    assert len(whole.encode()) == FRAME_BYTES_MAX == 65_536
    assert decode(make(whole)) is not None
    with pytest.raises(BadInput, match=r"^a frame may have at most 65536 bytes$") as refusal:
        decode(make(whole + " "))
    assert refusal.value.code == "too_large"


@pytest.mark.parametrize("decode", [decode_up, decode_down])
@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"type":"bye","x":"\xff"}', b'{"type":"bye"} {}', b'{"type":"bye","x":"\xc3\xa9}']
)
def test_what_is_no_json_is_told_from_what_says_something_wrong(decode: Callable[[bytes], object], data: bytes) -> None:
    """The whole frame is UTF-8, also where nobody reads it."""
    with pytest.raises(BadInput) as refusal:
        decode(data)
    assert (refusal.value.code, str(refusal.value)) == ("bad_json", "a frame must be one JSON object in UTF-8")


def test_a_frame_that_nests_too_deeply_is_refused() -> None:
    """An unknown field is not skipped whatever it holds."""
    with pytest.raises(BadInput, match="deep"):
        decode_up('{"type":"bye","x":' + "[" * 100 + "]" * 100 + "}")
