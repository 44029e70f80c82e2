"""`queuebell serve --azure-relay` as a process: before another bridge's endpoint, and settings that are refused."""

from __future__ import annotations

import json
import pathlib
import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import QueueServiceClient

from tests.support.azure import connection_string
from tests.support.certificates import write_self_signed
from tests.support.command import perform, serving


@contextmanager
def served(
    data: pathlib.Path, name: str, *words: str, env: Mapping[str, str] | None = None
) -> Iterator[tuple[str, int]]:
    """Serve, read from the log where the server called ``name`` is, and stop in order; gives both addresses."""
    with serving(data, *words, env=env) as bridge:
        assert bridge.process.stderr is not None
        found = None
        while found is None:
            line = bridge.process.stderr.readline().decode()
            assert line
            found = re.search(rf"{name} on https?://127\.0\.0\.1:(\d+)", line)
        yield bridge.url, int(found[1])
        code, _ = bridge.stop()
    assert code == 0


def test_puts_through_the_relay_are_triggers_here(tmp_path: pathlib.Path) -> None:
    """One bridge has the queue, another has the bell; the SDK speaks to the bell."""
    with (
        served(tmp_path / "queue", "azure_queue", "--azure-queue", "127.0.0.1:0") as (_, port),
        served(tmp_path / "bell", "azure_relay", "--azure-relay", f"127.0.0.1:0=http://127.0.0.1:{port}") as (
            url,
            relay,
        ),
        QueueServiceClient.from_connection_string(connection_string(relay), retry_total=0) as sdk,
    ):
        sdk.create_queue("orders").send_message("x")
        with urllib.request.urlopen(f"{url}/v1/queues/devstoreaccount1/orders") as answer:
            state = json.loads(answer.read())
        assert (state["triggers"], state["dirty"], state["exists"]) == (1, True, None)


def test_an_endpoint_that_speaks_https(tmp_path: pathlib.Path) -> None:
    """Its certificate has to be one that this machine, or SSL_CERT_FILE, vouches for."""
    cert, key = write_self_signed(tmp_path)
    tls = ("--azure-cert", str(cert), "--azure-key", str(key))
    with served(tmp_path / "queue", "azure_queue", "--azure-queue", "127.0.0.1:0", *tls) as (_, port):
        words = ("--azure-relay", f"127.0.0.1:0=https://127.0.0.1:{port}")
        with (
            served(tmp_path / "bell", "azure_relay", *words, env={"SSL_CERT_FILE": str(cert)}) as (_, relay),
            QueueServiceClient.from_connection_string(connection_string(relay), retry_total=0) as sdk,
        ):
            sdk.create_queue("orders").send_message("x")
        with (
            served(tmp_path / "bell", "azure_relay", *words) as (_, relay),
            QueueServiceClient.from_connection_string(connection_string(relay), retry_total=0) as sdk,
            pytest.raises(HttpResponseError, match="nothing was carried out"),
        ):
            sdk.get_queue_client("orders").send_message("x")


@pytest.mark.parametrize(
    "value",
    ["127.0.0.1:0", "127.0.0.1=http://a", "127.0.0.1:0=ftp://a", "127.0.0.1:0=http://a/path", "0.0.0.0:0=http://a"],
)
def test_settings_that_are_refused(tmp_path: pathlib.Path, value: str) -> None:
    """Exit code 78, and one line that names the key."""
    done = perform("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--azure-relay", value, code=78)
    assert b"serve: azure_relay: " in done.stderr
