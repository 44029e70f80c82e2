"""The prefix of topics: from an address, or from the settings where the address names none."""

from __future__ import annotations

import pytest

from bridge.brokers.prefix import take_prefix, with_prefix
from bridge.contract.errors import ConfigurationError
from bridge.contract.names import DEFAULT_PREFIX
from queuebell.command.listen_settings import load
from queuebell.command.main import main


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://host:4222", "nats://host:4222?prefix=site7"),
        ("mqtt://me:secret@host?version=5", "mqtt://me:secret@host?version=5&prefix=site7"),
        ("postgres://me@host/jobs", "postgres://me@host/jobs?prefix=site7"),
        ("nats://host?prefix=other", "nats://host?prefix=other"),
        ("http://127.0.0.1:8470", "http://127.0.0.1:8470"),
        ("nats://[", "nats://["),
        ("", ""),
    ],
)
def test_an_address_takes_the_prefix_that_it_does_not_name(url: str, expected: str) -> None:
    """Over HTTP there are no topics; what is malformed is left for others to refuse."""
    assert with_prefix(url, "site7") == expected
    assert with_prefix(url, DEFAULT_PREFIX) == url
    if "site7" in expected:
        assert take_prefix(expected) == (url, "site7")


def test_listen_takes_it_from_the_same_setting() -> None:
    """From the environment, and from the top level of the file as the bridge does."""
    assert load(None, environment={"QUEUEBELL_PREFIX": "site7"}).prefix == "site7"
    assert load(None, environment={}).prefix == DEFAULT_PREFIX


def test_a_prefix_that_is_no_token_is_refused() -> None:
    """It would be several levels of a topic."""
    with pytest.raises(ConfigurationError, match="prefix"):
        with_prefix("nats://host", "a.b")


@pytest.mark.parametrize("words", [["publish", "a/b"], ["queue", "put", "a/b", "x", "--store", "redis://nowhere"]])
def test_the_commands_publish_below_the_prefix_of_the_settings(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the bridge, which takes it from the same setting."""
    opened: list[str] = []

    def open_bus(url: str, api_key: object = None) -> None:
        opened.append(url)
        raise ConfigurationError("far enough")

    monkeypatch.setattr("bridge.producer.buses.open_bus", open_bus)
    monkeypatch.setattr("bridge.producer.publisher.open_bus", open_bus)
    monkeypatch.setenv("QUEUEBELL_PREFIX", "site7")
    assert main([*words, "--bridge", "nats://host:4222"]) == 78
    assert opened == ["nats://host:4222?prefix=site7"]
