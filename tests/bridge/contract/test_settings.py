"""Settings from three places: who wins, and what an error says."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from bridge.contract.errors import ConfigurationError
from bridge.contract.settings import doubtful, parse_toml, resolve


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    listen: str = "default"
    size: Annotated[int, Meta(ge=1)] = 7
    names: tuple[str, ...] = ()
    loud: bool = False
    limit: float | None = None


def test_the_command_line_wins_over_environment_over_file() -> None:
    """Each layer hides the one below, key by key."""
    table = {"listen": "file", "size": 2, "loud": True}
    environment = {"QUEUEBELL_LISTEN": "environment", "QUEUEBELL_SIZE": "3", "PATH": "x"}
    sample = resolve(
        Sample, table=table, environment=environment, options={"listen": "option", "size": None, "config": "f"}
    )
    assert (sample.listen, sample.size, sample.loud) == ("option", 3, True)


def test_text_is_read_as_what_is_wanted() -> None:
    """Environment and options are text: numbers, truth and lists are read from it."""
    environment = {"QUEUEBELL_NAMES": "a, b,,c", "QUEUEBELL_LOUD": "true", "QUEUEBELL_LIMIT": "2.5"}
    sample = resolve(Sample, environment=environment)
    assert (sample.names, sample.loud, sample.limit) == (("a", "b", "c"), True, 2.5)


def test_what_listen_sets_for_its_commands_is_no_setting() -> None:
    """A command run by `listen --exec` may call queuebell itself."""
    environment = {"QUEUEBELL_ID": "1", "QUEUEBELL_QUEUE": "a/q", "QUEUEBELL_ATTEMPT": "2", "QUEUEBELL_STORE": "x"}
    assert resolve(Sample, environment=environment) == Sample()


def test_toml_errors_name_the_file() -> None:
    """A file that is not TOML says which and where."""
    with pytest.raises(ConfigurationError, match=r"q\.toml: not TOML: .*line 1"):
        parse_toml("a = \nb = 1", "q.toml")


def test_toml_that_is_nested_too_deeply_is_an_error() -> None:
    """A few thousand brackets are no reason for a traceback."""
    with pytest.raises(ConfigurationError, match=r"q\.toml: its values are nested"):
        parse_toml("a = " + "[" * 30_000, "q.toml")


def test_a_file_that_is_right_is_read() -> None:
    """As tables."""
    assert parse_toml('a = 1\n[listener]\nb = "x"', "q.toml") == {"a": 1, "listener": {"b": "x"}}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"table": {"lisen": 1}}, "configuration: unknown key 'lisen'; did you mean 'listen'?"),
        ({"table": {"zzz": 1}}, "configuration: unknown key 'zzz'; known are listen, size, names, loud, limit"),
        ({"table": {"size": "3"}, "source": "q.toml"}, "q.toml: size: has to be a whole number, and this is a text"),
        ({"table": {"size": 0}, "source": "q.toml"}, "q.toml: size: has to be a whole number, 1 or more"),
        ({"table": {"loud": "true"}, "source": "q.toml"}, "q.toml: loud: has to be true or false, and this is a text"),
        ({"table": {"size": True}}, "configuration: size: has to be a whole number, and this is true or false"),
        ({"environment": {"QUEUEBELL_SIZE": "0"}}, "environment QUEUEBELL_SIZE: has to be a whole number, 1 or more"),
        (
            {"environment": {"QUEUEBELL_SIZE": "many"}},
            "environment QUEUEBELL_SIZE: has to be a whole number, and this is a text",
        ),
        ({"environment": {"QUEUEBELL_SIZ": "1"}}, "environment: unknown QUEUEBELL_SIZ; did you mean QUEUEBELL_SIZE?"),
        ({"options": {"loud": "perhaps"}}, "option --loud: has to be true or false, and this is a text"),
        ({"options": {"size": "-1"}}, "option --size: has to be a whole number, 1 or more"),
        ({"options": {"names": "a\0,b"}}, "option --names: holds a NUL character"),
        ({"options": {"long_name": 0}}, "option --long-name: has to be a whole number, 1 or more"),
        ({"table": {"names": {"deep": "\0"}}}, "configuration: names: holds a NUL character"),
        ({"table": {"names": [{"deep": "\0"}]}, "source": "q.toml"}, "q.toml: names: holds a NUL character"),
        ({"table": {"names": ["a", "\0"]}}, "configuration: names: holds a NUL character"),
        ({"table": {"listen": "a\0b"}}, "configuration: listen: holds a NUL character"),
        ({"environment": {"QUEUEBELL_LISTEN": "\0"}}, "environment QUEUEBELL_LISTEN: holds a NUL character"),
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
        ({"each": 5}, "each: has to be a list, and this is a whole number"),
        ({"each": [{"name": "a"}, "b"]}, "each 2: has to be a table, and this is a text"),
        ({"each": [{"name": 1.5}]}, "each 1: name: has to be a text, and this is a number"),
        ({"each": [{"name": datetime.date(2026, 1, 1)}]}, "each 1: name: has to be a text, and this is a date"),
        ({"each": [{"nam": "a"}]}, "each 1: unknown key 'nam'"),
        ({"each": [{}]}, "each 1: name is missing"),
        ({"each": [{"name": "a", "modes": ["on", "of"]}]}, "each 1: modes 2: 'of' is none of its values"),
        ({"mode": "of"}, "mode: 'of' is none of its values, which are on, off"),
        ({"share": 0}, "share: has to be a number, more than 0"),
        ({"share": 2}, "share: has to be a number, less than 2"),
        ({"word": "b"}, "word: Expected str matching regex '^a$'"),
    ],
)
def test_what_is_wrong_is_said_without_the_words_of_python(table: dict[str, Any], words: str) -> None:
    """Also deep within tables of which there are several, which are counted from 1."""
    with pytest.raises(ConfigurationError) as caught:
        resolve(_Outer, table=table, source="q.toml")
    assert str(caught.value) == f"q.toml: {words}"


def test_what_is_another_commands_is_left_alone() -> None:
    """A variable that is nearly no key, any without the prefix, options of other names and those not given."""
    environment = {
        "QUEUEBELL_BROKER": "x",
        "QUEUEBELL_LIST_X": "x",
        "LISTEN": "x",
        "queuebell_listen": "x",
        "QUEUEBELL_": "x",
    }
    assert resolve(Sample, environment=environment, options={"config": "x", "listen": None}) == Sample()
    mixed = {"QUEUEBELL_ID": "1", "PATH": "x", "QUEUEBELL_BROKER": "x", "QUEUEBELL_LISTEN": "seen"}
    assert resolve(Sample, environment=mixed, options={"config": "x", "size": None, "loud": "1"}) == Sample(
        listen="seen", loud=True
    )


def test_a_list_is_text_between_commas_or_a_list() -> None:
    """From every place; text that is no list keeps its commas."""
    for given in ("a, b ,,c", ["a", "b", "c"], ("a", "b", "c")):
        assert resolve(Sample, environment={"QUEUEBELL_NAMES": given}).names == ("a", "b", "c")
        assert resolve(Sample, options={"names": given}).names == ("a", "b", "c")
    assert resolve(Sample, options={"listen": "a, b"}).listen == "a, b"
    assert resolve(Sample, table={"names": ["a, b"]}).names == ("a, b",)
    with pytest.raises(ConfigurationError, match="names"):
        resolve(Sample, table={"names": "a, b"})


class Lists(msgspec.Struct, frozen=True, kw_only=True):
    maybe: list[str] | None = None


def test_a_list_that_may_be_absent_is_split_too() -> None:
    """Its type is a union."""
    assert resolve(Lists, options={"maybe": "a,b"}).maybe == ["a", "b"]


def test_a_variable_that_may_be_meant_is_told_with_the_key_that_is_near() -> None:
    """Not those of others, of child processes, of keys that are set, or like no key; all of them, in their order."""
    given = {
        "QUEUEBELL_SISE": "1",
        "QUEUEBELL_LISTENS": "x",
        "QUEUEBELL_SIZE": "1",
        "LISTENS": "x",
        "QUEUEBELL_ZZZ": "1",
    }
    assert doubtful(Sample, given) == [
        "environment: QUEUEBELL_LISTENS is no setting and changes nothing; did you mean QUEUEBELL_LISTEN?",
        "environment: QUEUEBELL_SISE is no setting and changes nothing; did you mean QUEUEBELL_SIZE?",
    ]
