"""Where a client's key comes from, where it goes, and where it never goes."""

from __future__ import annotations

import pathlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.brokers.credential import Credential, key_option
from bridge.contract.address import http_addresses
from bridge.contract.errors import ConfigurationError, KeyUnavailable

HERE = http_addresses("http://127.0.0.1:8470", "bridge")[0]


TOKEN = frozenset(string.ascii_letters + string.digits + "._~+/-")


def carried(key: str) -> dict[str, str]:
    """What a request has of a key."""
    return {"Authorization": f"Bearer {key}"}


def test_given_beats_the_variable_and_that_the_file(tmp_path: pathlib.Path) -> None:
    """One of each, and none."""
    file = tmp_path / "key"
    file.write_text("qb_file\n")
    environment = {"QUEUEBELL_API_KEY": "qb_variable", "QUEUEBELL_API_KEY_FILE": str(file)}
    assert Credential(HERE, "qb_given", environment).headers() == carried("qb_given")
    assert Credential(HERE, None, environment).headers() == carried("qb_variable")
    environment["QUEUEBELL_API_KEY"] = ""
    assert Credential(HERE, None, environment).headers() == carried("qb_file")
    assert Credential(HERE, None, {}).headers() == {}
    assert not Credential(HERE, None, {})
    assert Credential(HERE, None, environment)


def test_a_key_is_asked_for_each_request() -> None:
    """For those that expire; one that raises, or returns no key, is a failure that is worth another attempt."""
    keys = iter(["one", "two"])
    credential = Credential(HERE, lambda: next(keys), {})
    assert [credential.headers() for _ in range(2)] == [carried("one"), carried("two")]
    for wrong in (credential, Credential(HERE, lambda: "<html>", {})):
        with pytest.raises(KeyUnavailable) as raised:
            wrong.headers()
        assert raised.value.retryable
        assert "html" not in str(raised.value)


def test_a_file_is_followed(tmp_path: pathlib.Path) -> None:
    """A new one counts at once; while it is away or half-written, the old one does."""
    file = tmp_path / "key"
    file.write_text("one")
    credential = Credential(HERE, None, {"QUEUEBELL_API_KEY_FILE": str(file)})
    other = tmp_path / "other"
    other.write_text("  two\n")
    other.replace(file)
    assert credential.headers() == carried("two")
    for broken in ("", "two lines\nof it"):
        file.write_text(broken)
        assert credential.headers() == carried("two")
    file.unlink()
    assert credential.headers() == carried("two")
    file.write_text("three")
    assert credential.headers() == carried("three")
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigurationError, match="QUEUEBELL_API_KEY_FILE: cannot read a key from"):
            Credential(HERE, None, {"QUEUEBELL_API_KEY_FILE": str(path)})


def test_a_file_that_everybody_can_read_is_told_of(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the command that closes it, again when it is replaced by another open one, and never its content."""
    file = tmp_path / "key"
    file.write_text("qb_one")
    file.chmod(0o640)
    credential = Credential(HERE, None, {"QUEUEBELL_API_KEY_FILE": str(file)})
    assert not caplog.records
    for key in ("qb_two", "qb_three"):
        other = tmp_path / "other"
        other.write_text(key)
        other.chmod(0o644)
        other.replace(file)
        caplog.clear()
        assert credential.headers() == credential.headers() == carried(key)
        words = f"QUEUEBELL_API_KEY_FILE: every user of this machine can read it: chmod 600 {file}"
        assert [record.getMessage() for record in caplog.records] == [words]


@pytest.mark.parametrize(
    "url", ["http://bridge:8470", "http://10.0.0.1", "http://[2001:db8::1]:1", "http://a.localhost.b"]
)
def test_a_key_never_goes_over_a_network_in_the_clear(url: str) -> None:
    """Wherever it comes from; without a key there is nothing to refuse, and HTTPS carries it."""
    where = http_addresses(url, "bridge")[0]
    for given_key, environment in (("k", {}), (lambda: "k", {}), (None, {"QUEUEBELL_API_KEY": "k"})):
        with pytest.raises(ConfigurationError, match="use https://"):
            Credential(where, given_key, environment)
    assert Credential(where, None, {}).headers() == {}
    assert Credential(http_addresses(url.replace("http", "https", 1), "bridge")[0], "k", {}).headers() == carried("k")


@given(st.text())
def test_what_could_break_out_of_a_header_is_refused_unseen(key: str) -> None:
    """Only what RFC 6750 calls a token is taken, in any alphabet; the complaint repeats nothing."""
    if key.rstrip("=") and set(key.rstrip("=")) <= TOKEN:
        assert Credential(HERE, key, {}).headers() == carried(key)
        return
    with pytest.raises(ConfigurationError, match="a key is letters, digits") as refused:
        Credential(HERE, key, {})
    assert refused.value.args == (str(refused.value),)
    assert len(key) < 3 or key not in str(refused.value)


def test_nothing_shows_a_key() -> None:
    """Neither its text form nor a complaint about where it was given."""
    assert "secret" not in repr(Credential(HERE, "secret", {}))
    with pytest.raises(ConfigurationError, match="a broker has users") as refused:
        key_option("nats://a", "secret")
    assert "secret" not in str(refused.value)
    assert key_option("https://a", "k") == {"api_key": "k"}
    assert key_option("nats://a", None) == {}


@pytest.mark.parametrize("url", ["http://127.0.0.1:1,bell.example", "http://bell.example,localhost:1"])
def test_of_equal_bridges_all_may_be_shown_the_key(url: str) -> None:
    """Where one of them would hear it in the clear, none is given it; without a key nothing is said of it."""
    with pytest.raises(ConfigurationError, match=r"bell\.example would carry the key"):
        Credential.of(http_addresses(url, "bridge"), "k")
    assert not Credential.of(http_addresses(url, "bridge"))
    assert Credential.of(http_addresses(url.replace("http", "https"), "bridge"), "k").headers() == carried("k")
    assert Credential.of(http_addresses("http://[::1],127.0.0.1:1", "bridge"), "k").headers() == carried("k")
