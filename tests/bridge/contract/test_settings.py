"""Settings from three places: who wins, and what an error says."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from bridge.contract.errors import ConfigurationError
from bridge.contract.settings import parse_toml, resolve


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


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"table": {"lisen": "x"}, "source": "q.toml"}, ["q.toml", "'lisen'", "did you mean 'listen'"]),
        ({"table": {"zzz": "x"}, "source": "q.toml"}, ["q.toml", "'zzz'", "known are listen"]),
        ({"table": {"size": "3"}, "source": "q.toml"}, ["q.toml: size", "int"]),
        ({"table": {"size": 0}, "source": "q.toml"}, ["q.toml: size", ">= 1"]),
        ({"environment": {"QUEUEBELL_SIZE": "many"}}, ["environment QUEUEBELL_SIZE", "int"]),
        ({"environment": {"QUEUEBELL_LISTN": "x"}}, ["QUEUEBELL_LISTN", "did you mean QUEUEBELL_LISTEN"]),
        ({"options": {"size": "-1"}}, ["option --size", ">= 1"]),
        ({"table": {"listen": "a\0b"}, "source": "q.toml"}, ["q.toml: listen", "NUL"]),
        ({"table": {"names": ["a", "\0"]}, "source": "q.toml"}, ["q.toml: names", "NUL"]),
        ({"table": {"names": [{"deep": "\0"}]}, "source": "q.toml"}, ["q.toml: names", "NUL"]),
    ],
)
def test_an_error_names_key_and_place(given: dict[str, Any], words: list[str]) -> None:
    """What is wrong, where it came from, and what was probably meant stand in one line."""
    with pytest.raises(ConfigurationError) as caught:
        resolve(Sample, **given)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


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
