"""Settings from three places: who wins, and what an error says."""

from __future__ import annotations

from typing import Annotated, Any

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
        ({"table": {"size": "3"}, "source": "q.toml"}, "q.toml: size: Expected int, got str"),
        ({"table": {"size": 0}, "source": "q.toml"}, "q.toml: size: Expected int >= 1"),
        ({"table": {"loud": "true"}, "source": "q.toml"}, "q.toml: loud: Expected bool, got str"),
        ({"table": {"size": True}, "source": "q.toml"}, "q.toml: size: Expected int, got bool"),
        ({"environment": {"QUEUEBELL_SIZE": "0"}}, "environment QUEUEBELL_SIZE: Expected int >= 1"),
        ({"environment": {"QUEUEBELL_SIZE": "many"}}, "environment QUEUEBELL_SIZE: Expected int, got str"),
        ({"environment": {"QUEUEBELL_SIZ": "1"}}, "environment: unknown QUEUEBELL_SIZ; did you mean QUEUEBELL_SIZE?"),
        ({"options": {"loud": "perhaps"}}, "option --loud: Expected bool, got str"),
        ({"options": {"size": "-1"}}, "option --size: Expected int >= 1"),
        ({"options": {"names": "a\0,b"}}, "option --names: holds a NUL character"),
        ({"options": {"long_name": 0}}, "option --long-name: Expected int >= 1"),
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
