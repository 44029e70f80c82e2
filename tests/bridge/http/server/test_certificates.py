"""Certificates that an operator forgot: expired, not valid yet, soon over, readable by everybody, no file (S39)."""

from __future__ import annotations

import datetime
import logging
import os
import pathlib

import pytest

from bridge.brokers.client_certificate import JUDGED_EVERY_S
from bridge.contract.errors import ConfigurationError
from bridge.http.server.tls import Certificates
from tests.support.certificates import write_self_signed

DAY = datetime.timedelta(days=1)


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [
        (-90 * DAY, 60 * DAY, ""),
        (-90 * DAY, -DAY, "has expired"),
        (DAY / 24, 90 * DAY, "is not valid yet: clients refuse it, unless the clock of this machine is behind"),
        (-80 * DAY, 10 * DAY, "expires in 240 hours"),
        # One that lives for a day is renewed in its last third.
        (-DAY / 2, DAY / 2, ""),
        (-DAY * 3 / 4, DAY / 4, "expires in 6 hours"),
    ],
)
def test_its_times(
    begins: datetime.timedelta,
    ends: datetime.timedelta,
    said: str,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The bridge serves it all the same, and says what its clients will think of it."""
    cert, key = write_self_signed(tmp_path, begins, ends)
    key.chmod(0o600)
    Certificates(str(cert), str(key), "tls")
    assert said in caplog.text
    assert bool(said) == bool(caplog.records)


def test_it_is_judged_again_while_it_serves(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A bridge that runs for months says so too, a few times a day."""
    cert, key = write_self_signed(tmp_path, -80 * DAY, 30 * DAY)
    key.chmod(0o600)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    moment = now
    certificates = Certificates(str(cert), str(key), "tls", wall=lambda: moment)
    for days, lines in ((1, 0), (17, 1)):
        moment = now + days * 86_400
        certificates.look()
        certificates.look()
        assert len(caplog.records) == lines
    moment += JUDGED_EVERY_S
    certificates.look()
    assert len(caplog.records) == 2


def test_a_key_that_everybody_can_read(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning with the command that closes it; a group may be meant to."""
    cert, key = write_self_signed(tmp_path, -80 * DAY, 60 * DAY)
    key.chmod(0o640)
    Certificates(str(cert), str(key), "tls")
    assert not caplog.records
    key.chmod(0o644)
    Certificates(str(cert), str(key), "tls")
    assert f"tls_key: every user of this machine can read it: chmod 600 {key}" in caplog.text


def test_a_pipe_is_no_certificate(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would be waited for for ever, at the start and while it serves."""
    cert, key = write_self_signed(tmp_path)
    certificates = Certificates(str(cert), str(key), "tls")
    cert.unlink()
    os.mkfifo(cert)
    with pytest.raises(ConfigurationError, match="no regular file"):
        Certificates(str(cert), str(key), "tls")
    with caplog.at_level(logging.ERROR):
        certificates.look()
    assert "no regular file" in caplog.text
