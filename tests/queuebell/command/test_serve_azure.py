"""`queuebell serve --azure-queue` as a process: the address, HTTPS, restarts, and settings that are refused."""

from __future__ import annotations

import pathlib
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from azure.storage.queue import CorsRule, QueueServiceClient

from tests.support.azure import connection_string
from tests.support.certificates import write_self_signed
from tests.support.command import perform, serving


@contextmanager
def served(data: pathlib.Path, *words: str) -> Iterator[int]:
    """Serve with an Azure endpoint on a free port, read from the log where that is, and stop in order."""
    with serving(data, "--azure-queue", "127.0.0.1:0", *words) as bridge:
        assert bridge.process.stderr is not None
        found = None
        while found is None:
            line = bridge.process.stderr.readline().decode()
            assert line
            found = re.search(r"azure_queue on https?://127\.0\.0\.1:(\d+)", line)
        yield int(found[1])
        code, log = bridge.stop()
    assert code == 0
    assert "stopped" in log


def test_messages_and_properties_survive_a_restart(tmp_path: pathlib.Path) -> None:
    """What an SDK put, and what it set, is there after a restart; the native command sees the same queue."""
    with served(tmp_path / "data") as port:
        with QueueServiceClient.from_connection_string(connection_string(port)) as sdk:
            sdk.create_queue("orders", metadata={"a": "b"}).send_message("kept")
            sdk.set_service_properties(cors=[CorsRule(["*"], ["GET"])])
    with served(tmp_path / "data") as port:
        with QueueServiceClient.from_connection_string(connection_string(port)) as sdk:
            assert [rule.allowed_origins for rule in sdk.get_service_properties()["cors"]] == ["*"]
            queue = sdk.get_queue_client("orders")
            assert queue.get_queue_properties().metadata == {"a": "b"}
            (peeked,) = queue.peek_messages()
            assert peeked.content == "kept"


def test_https(tmp_path: pathlib.Path) -> None:
    """With a certificate and a key the SDK speaks HTTPS to it."""
    cert, key = write_self_signed(tmp_path)
    with served(tmp_path / "data", "--azure-cert", str(cert), "--azure-key", str(key)) as port:
        with QueueServiceClient.from_connection_string(
            connection_string(port, "https"), connection_verify=str(cert)
        ) as sdk:
            sdk.create_queue("orders").send_message("x")


def test_settings_that_are_refused(tmp_path: pathlib.Path) -> None:
    """One line that names the key, exit code 78; a port that is taken is named with its setting."""
    base = ("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    for words, key in (
        (("--azure-queue", "nonsense"), "azure_queue: an address is HOST:PORT"),
        (("--azure-queue", "127.0.0.1:0", "--azure-cert", "x"), "azure_key: HTTPS needs both"),
        (("--azure-queue", "127.0.0.1:0", "--azure-cert", "x", "--azure-key", "y"), "azure_cert: cannot use"),
        (("--azure-cert", "x"), "azure_cert: is for the Azure Queue endpoint"),
        (("--azure-queue", "0.0.0.0:0"), "insecure"),
    ):
        done = perform(*base, *words, code=78)
        assert key in done.stderr.decode()
        assert "Traceback" not in done.stderr.decode()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = perform(*base, "--azure-queue", address, code=1)
    assert f"azure_queue: cannot listen on {address}" in done.stderr.decode()
