"""The bridge's settings: files, addresses, defaults."""

from __future__ import annotations

import pathlib

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.core.settings import Periods
from queuebell.command.listen_settings import load as listen_settings
from queuebell.settings import Settings, load, parse_listen


def test_defaults_are_those_of_the_contract() -> None:
    """Without any configuration the command listens on loopback and keeps its data beside it."""
    settings = load(None, environment={})
    assert settings == Settings()
    assert (settings.listen, settings.data) == ("127.0.0.1:8470", "./queuebell-data")
    assert settings.bridge == settings.store == "http://127.0.0.1:8470"


def test_a_file_is_read_and_the_listeners_table_left_alone(tmp_path: pathlib.Path) -> None:
    """One file serves bridge and listeners; each reads its own part."""
    file = tmp_path / "queuebell.toml"
    file.write_text('listen = "127.0.0.1:0"\nallowed_hosts = ["bridge"]\n[listener]\nconcurrency = 4\n')
    settings = load(str(file), environment={"QUEUEBELL_DATA": "/d"})
    assert (settings.listen, settings.allowed_hosts, settings.data) == ("127.0.0.1:0", ("bridge",), "/d")
    assert load(None, environment={"QUEUEBELL_CONFIG": str(file)}).listen == "127.0.0.1:0"


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: pathlib.Path) -> None:
    """A missing or binary file is named."""
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        load(str(tmp_path / "none.toml"), environment={})
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"binary\.toml"):
        load(str(binary), environment={})


@pytest.mark.parametrize(
    ("text", "parts"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:8470", ("::1", 8470)), ("localhost:65535", ("localhost", 65535))],
)
def test_addresses_are_split(text: str, parts: tuple[str, int]) -> None:
    """HOST:PORT, with brackets around an IPv6 address."""
    assert parse_listen(text) == parts


@pytest.mark.parametrize("text", ["", "8470", ":8470", "host:", "host:x", "host:65536", "::1:8470", "host:-1", "h:٣"])
def test_wrong_addresses_are_refused(text: str) -> None:
    """Anything else names the key."""
    with pytest.raises(ConfigurationError, match="listen"):
        parse_listen(text)


def test_brokers_come_from_the_file_the_environment_and_the_command_line(tmp_path: pathlib.Path) -> None:
    """As lists; in the environment separated by commas, on the command line repeated."""
    file = tmp_path / "queuebell.toml"
    file.write_text('nats = ["nats://a", "nats://b"]\nprefix = "site7"\nrepublish = false\nready_requires = ["nats"]\n')
    settings = load(str(file), environment={"QUEUEBELL_MQTT": "mqtt://c, mqtt://d"}, options={"nats": None})
    assert settings.nats == ("nats://a", "nats://b")
    assert settings.mqtt == ("mqtt://c", "mqtt://d")
    assert (settings.prefix, settings.republish, settings.ready_requires) == ("site7", False, ("nats",))
    settings = load(str(file), environment={"QUEUEBELL_READY_REQUIRES": "nats-2"}, options={"nats": ["nats://e"]})
    assert (settings.nats, settings.ready_requires) == (("nats://e",), ("nats-2",))


@pytest.mark.parametrize(
    ("text", "buses"),
    [
        ("nats://a", ("nats://a",)),
        (" nats://a:1, b:2,,nats://c , d", ("nats://a:1,b:2", "nats://c,d")),
        ("embedded, nats://a", ("embedded", "nats://a")),
        ("nats://a,embedded:4222", ("nats://a", "embedded:4222")),
        (",a,b", ("a", "b")),
    ],
)
def test_a_variable_has_buses_each_of_several_servers(text: str, buses: tuple[str, ...]) -> None:
    """A comma before another host of the same bus divides nothing; what has no scheme begins no bus of several."""
    assert load(None, environment={"QUEUEBELL_NATS": text}).nats == buses


@pytest.mark.parametrize("key", ["bridge", "store"])
def test_a_wrong_address_is_named_by_its_key(key: str) -> None:
    """Those of a bridge are looked at here; one of an engine is for whoever opens it."""
    with pytest.raises(ConfigurationError, match=f"^{key}: "):
        load(None, environment={}, options={key: "http://a:99999"})
    assert getattr(load(None, environment={}, options={key: "postgres://a:99999"}), key) == "postgres://a:99999"


def test_the_access_file_is_with_the_data_unless_named() -> None:
    """So that one folder holds all of a bridge."""
    assert Settings(data="here").access_file() == pathlib.Path("here/access.json")
    assert Settings(data="here", access="there").access_file() == pathlib.Path("there")


def test_queues_have_numbers_of_their_own(tmp_path: pathlib.Path) -> None:
    """`[[queue]]` tables become rules, the bridge's own keys their common ground."""
    file = tmp_path / "queuebell.toml"
    file.write_text('slack_s = 12\n[[queue]]\nmatch = "a/*"\nsweep_s = 5\nwake = "all"\n')
    periods = load(str(file), environment={"QUEUEBELL_SPREAD_S": "20"}).periods()
    assert (periods.slack_s, periods.spread_s, periods.sweep_s) == (12.0, 20.0, 60.0)
    assert [(rule.match, rule.sweep_s, rule.wake) for rule in periods.rules] == [("a/*", 5.0, "all")]
    numbers = {"heartbeat_s": 3.0, "start_ack_s": 4.0, "store_call_s": 5.0, "sweep_s": 6.0, "slack_s": 7.0}
    given = {**numbers, "spread_s": 8.0, "wake": "all"}
    assert load(None, environment={}, options=given).periods() == Periods(**given)


def test_a_variable_for_commands_of_a_worker_is_no_table_of_queues(tmp_path: pathlib.Path) -> None:
    """`listen --exec` sets QUEUEBELL_QUEUE for what it runs, which may well be one of our commands."""
    assert load(None, environment={"QUEUEBELL_QUEUE": "a/b"}).queue == ()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("sweep_s = 1e-6", "sweep_s"),
        ("sweep_s = 1e-320", "sweep_s"),
        ('[[queue]]\nmatch = "a/b"\nsweep_s = 0.05', "queue 1: sweep_s"),
        ("slack_s = 0.1", "slack_s"),
        ('[[queue]]\nmatch = "a/b"\nslack_s = 9', "queue 1: slack_s"),
        *((f"requests_per_second = {rate}", "requests_per_second") for rate in ("1e-320", "0.0009", "inf", "nan", "0")),
        ("request_burst = 0", "request_burst"),
        (f"request_burst = {10**400}", "request_burst"),
    ],
)
def test_numbers_whose_promise_would_be_false_are_refused(tmp_path: pathlib.Path, text: str, key: str) -> None:
    """What `check` and `serve` print of a configuration holds for every one that is accepted."""
    file = tmp_path / "queuebell.toml"
    file.write_text(text + "\n")
    with pytest.raises(ConfigurationError, match=key):
        load(str(file), environment={})


def test_the_slack_grows_with_the_heartbeat_unless_given() -> None:
    """A long heartbeat by itself is good; a slack below two of them is refused by name."""
    assert load(None, environment={}, options={"heartbeat_s": "60"}).periods().slack_s == 120.0
    assert load(None, environment={}).periods().slack_s == 30.0
    with pytest.raises(ConfigurationError, match="slack_s"):
        load(None, environment={}, options={"heartbeat_s": "60", "slack_s": "30"})


def test_a_variable_that_is_like_a_key_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """It may be a key written wrongly, or another program's; what Kubernetes sets for a service of our name is not."""
    environment = {
        "QUEUEBELL_SWEPT": "3",
        "QUEUEBELL_PORT": "tcp://10.0.0.1:8470",
        "QUEUEBELL_SERVICE_HOST": "10.0.0.1",
        "QUEUEBELL_PORT_8470_TCP_ADDR": "10.0.0.1",
        "QUEUEBELL_BURIAL": "{}",
        "QUEUEBELL_CLIENT_CERT": "worker.crt",
        "QUEUEBELL_CLIENT_KEY": "worker.key",
        "QUEUEBELL_POOL_LIMIT": "a/b=1",
        "SWEEP": "1",
    }
    assert load(None, environment=environment) == load(None, environment={})
    words = "environment: QUEUEBELL_SWEPT is no setting and changes nothing; did you mean QUEUEBELL_SWEEP_S?"
    assert [record.getMessage() for record in caplog.records] == [words]
    assert listen_settings(None, environment={"QUEUEBELL_SWEEP_S": "3", "QUEUEBELL_CONCUR": "3"}).concurrency is None
    assert caplog.records[-1].getMessage().endswith("did you mean QUEUEBELL_CONCURRENCY?")
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[azure_account]]\nname = "a"\nkey = "eA=="\n', True),
        ('[[azure_account]]\nname = "a"\nkey_file = "/run/key"\n', False),
        ('[[webhook]]\nurl = "https://x.example/"\nqueue = "a/b"\nsecret = "whsec_"\n', True),
        ('nats = ["tls://u:p@a"]\n', True),
        ('nats = ["nats://a"]\nlisten = "127.0.0.1:0"\n', False),
    ],
)
def test_a_file_of_secrets_that_everybody_can_read_is_told_of(
    text: str, told: bool, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the command that closes it; where it holds none, or is closed, nothing is said."""
    file = tmp_path / "queuebell.toml"
    file.write_text(text)
    for mode in (0o600, 0o644):
        file.chmod(mode)
        load(str(file), environment={})
        words = f"{file} holds secrets, and every user of this machine can read it: chmod 600 {file}"
        assert [record.getMessage() for record in caplog.records] == ([words] if told and mode == 0o644 else [])
