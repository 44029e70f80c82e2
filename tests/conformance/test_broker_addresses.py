"""Addresses of brokers: what is taken, what is refused, and what is never shown."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.brokers import open_broker
from bridge.contract.errors import ConfigurationError
from tests.support.command import ROOT, environment


@pytest.mark.parametrize(
    ("url", "kind", "address"),
    [
        ("nats://h", "nats", "nats://h:4222"),
        ("nats://u:p@h:1/", "nats", "nats://h:1"),
        ("tls://[::1]:5?stream=S&durable=d&ack_wait=3", "nats", "tls://[::1]:5"),
        ("mqtt://u@h", "mqtt", "mqtt://h:1883"),
        ("mqtts://u:p@h?version=3.1.1&client_id=c&session=60", "mqtt", "mqtts://h:8883"),
    ],
)
def test_taken(url: str, kind: str, address: str) -> None:
    """Each scheme has its broker; the address shown holds neither user nor option."""
    broker = open_broker(url)
    assert (broker.kind, broker.address) == (kind, address)


@pytest.mark.parametrize(
    "url",
    [
        "h:1", "redis://hush@h", "nats://", "nats://hush@", "nats://hush:hush@h:x", "nats://h:0", "nats://h/hush",
        "nats://h?hush=1", "nats://h#hush", "nats://u:hush@h?nkey=/x", "mqtt://h?version=4", "mqtt://h?session=60",
        "mqtt://h?session=-1&client_id=hush", "mqtt://h?tls_hostname=hush", "tls://h?ack_wait=hush", "nats://[hush",
    ],
)  # fmt: skip
def test_refused(url: str) -> None:
    """A wrong address is a wrong setting, and the message does not repeat what may be secret."""
    with pytest.raises(ConfigurationError) as caught:
        open_broker(url)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["tls://127.0.0.1", "mqtts://127.0.0.1"])
@pytest.mark.parametrize("option", ["tls_ca", "tls_cert"])
async def test_missing_files(url: str, option: str, tmp_path: Path) -> None:
    """A file for TLS that is missing or no PEM is a wrong setting."""
    broken = tmp_path / "broken"
    broken.write_text("no PEM")
    for file in (tmp_path / "missing", broken):
        broker = open_broker(f"{url}?{option}={file}")
        with pytest.raises(ConfigurationError, match="tls_ca"):
            await broker.connect()
        await broker.close()


def test_nothing_is_loaded() -> None:
    """Making a broker loads no client library; connecting does."""
    code = (
        "import sys; from bridge.brokers import open_broker; open_broker('nats://h'); open_broker('mqtt://h');"
        "print([name for name in ('nats', 'paho', 'aiohttp') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        timeout=500,
        check=True,
    )
    assert ast.literal_eval(done.stdout) == []
