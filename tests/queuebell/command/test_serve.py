"""`queuebell serve` as a process: readiness, ownership, damage, signals."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import CorsRule, QueueServiceClient

from queuebell.assembly import assemble
from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.keda.scaled_object import KedaStore
from queuebell.settings import Settings
from tests.support.azure import connection_string
from tests.support.certificates import write_self_signed
from tests.support.command import perform, serving
from tests.support.keda import Keda
from tests.support.processes import PATIENCE_S, Processes


def test_environment_and_file_are_settings_too(tmp_path: pathlib.Path) -> None:
    """The file's level is hidden by the environment's, and the option's listen by nothing."""
    file = tmp_path / "queuebell.toml"
    file.write_text('listen = "127.0.0.1:1"\nlog_level = "error"\nlog_format = "json"\n')
    env = {"QUEUEBELL_CONFIG": str(file), "QUEUEBELL_LOG_LEVEL": "info"}
    with serving(tmp_path / "data", env=env) as bridge:
        _, log = bridge.stop()
    assert json.loads(log.splitlines()[0])["message"] == "ready"


def test_a_taken_port_is_one_clear_line(tmp_path: pathlib.Path) -> None:
    """Exit code 1, the address named, and the data file is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = perform("serve", "--listen", address, "--data", str(tmp_path / "data"), code=1)
    assert f"cannot listen on {address}" in done.stderr.decode().strip().splitlines()[-1]
    assert "Traceback" not in done.stderr.decode()
    with serving(tmp_path / "data"):
        pass


def test_data_that_cannot_be_a_directory_is_refused(tmp_path: pathlib.Path) -> None:
    """A path that leads through a file is one clear line."""
    (tmp_path / "file").write_text("x")
    done = perform("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "file" / "data"), code=None)
    assert done.returncode in {1, 78}
    assert "Traceback" not in done.stderr.decode()
    assert len(done.stderr.decode().strip().splitlines()) == 1


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
        (("--azure-cert", "x"), "azure_cert: has no effect without azure_queue"),
        (("--azure-queue", "0.0.0.0:0"), "insecure"),
    ):
        done = perform(*base, *words, code=78)
        assert key in done.stderr.decode()
        assert "Traceback" not in done.stderr.decode()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = perform(*base, "--azure-queue", address, code=1)
    assert f"azure_queue: cannot listen on {address}" in done.stderr.decode()


QUEUE = "billing/orders"


def settings(tmp_path: pathlib.Path, **given: Any) -> Settings:
    return Settings(listen="127.0.0.1:0", data=str(tmp_path), **given)


async def test_a_put_over_http_is_told_and_a_stop_ends_the_stream_in_order(tmp_path: pathlib.Path) -> None:
    """What runs is what was tested in parts: the address is in the log, and SIGTERM ends all with exit code 0."""
    async with Processes(tmp_path) as world:
        bridge = await world.serve("--keda", "127.0.0.1:0")
        await bridge.complains("keda on ", "\n")
        found = re.search(r"keda on (127\.0\.0\.1:\d+)", bridge.errors)
        assert found is not None
        async with grpc.aio.insecure_channel(found[1]) as channel:
            keda = Keda(channel)
            stream = keda.stream(QUEUE)
            assert (await stream.read()).result is False
            await bridge.put(QUEUE, "x")
            async with asyncio.timeout(PATIENCE_S):
                while not (await stream.read()).result:
                    pass
            assert await keda.metric() == (1, 1.0)
            bridge.signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                while await stream.read() is not grpc.aio.EOF:
                    pass
                assert await stream.code() is grpc.StatusCode.OK
        assert await bridge.ended() == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"keda": "nonsense"}, "keda: an address is HOST:PORT"),
        ({"keda": "0.0.0.0:0"}, "keda: a public address"),
        ({"keda": "127.0.0.1:0", "keda_cert": "x"}, "keda_key: HTTPS needs both"),
        ({"keda": "127.0.0.1:0", "keda_key": "x"}, "keda_cert: HTTPS needs both"),
        ({"keda": "127.0.0.1:0", "keda_cert": "x", "keda_key": "y"}, "keda_cert: cannot use"),
        ({"keda": "127.0.0.1:0", "keda_client_ca": "x"}, "keda_client_ca: has no effect without auth"),
        *(
            ({key: "x"}, f"{key}: has no effect without keda (--keda HOST:PORT)")
            for key in ("keda_cert", "keda_key", "keda_client_ca")
        ),
        ({"keda_store": (KedaStore(name="a", url="redis://h"),)}, "keda_store: has no effect without keda"),
        (
            {"keda": "127.0.0.1:0", "keda_store": (KedaStore(name="a", url="redis://h"),) * 2},
            "keda_store: name: a is used twice",
        ),
        ({"keda": "127.0.0.1:0", "keda_store": (KedaStore(name="a", url="memory:a"),)}, "keda_store: url"),
    ],
)
def test_what_is_refused(given: dict[str, Any], told: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        assemble(settings(tmp_path, **given), in_memory=True)


@pytest.mark.parametrize("module", ["grpc", "google.protobuf.descriptor_pb2"])
def test_a_missing_extra_is_named(module: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "queuebell.bridge.keda.server", raising=False)
    monkeypatch.delattr("queuebell.bridge.keda.server", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=re.escape(install("keda"))):
        assemble(settings(tmp_path, keda="127.0.0.1:0"), in_memory=True)


@contextmanager
def served_serve_relay(
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
        served_serve_relay(tmp_path / "queue", "azure_queue", "--azure-queue", "127.0.0.1:0") as (_, port),
        served_serve_relay(
            tmp_path / "bell", "azure_relay", "--azure-relay", f"127.0.0.1:0=http://127.0.0.1:{port}"
        ) as (
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
    with served_serve_relay(tmp_path / "queue", "azure_queue", "--azure-queue", "127.0.0.1:0", *tls) as (_, port):
        words = ("--azure-relay", f"127.0.0.1:0=https://127.0.0.1:{port}")
        with (
            served_serve_relay(tmp_path / "bell", "azure_relay", *words, env={"SSL_CERT_FILE": str(cert)}) as (
                _,
                relay,
            ),
            QueueServiceClient.from_connection_string(connection_string(relay), retry_total=0) as sdk,
        ):
            sdk.create_queue("orders").send_message("x")
        with (
            served_serve_relay(tmp_path / "bell", "azure_relay", *words) as (_, relay),
            QueueServiceClient.from_connection_string(connection_string(relay), retry_total=0) as sdk,
            pytest.raises(HttpResponseError, match="nothing was carried out"),
        ):
            sdk.get_queue_client("orders").send_message("x")


@pytest.mark.parametrize(
    "value",
    ["127.0.0.1:0", "127.0.0.1=http://a", "127.0.0.1:0=ftp://a", "127.0.0.1:0=http://a/path", "0.0.0.0:0=http://a"],
)
def test_settings_that_are_refused_serve_relay(tmp_path: pathlib.Path, value: str) -> None:
    """Exit code 78, and one line that names the key."""
    done = perform("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--azure-relay", value, code=78)
    assert b"serve: azure_relay: " in done.stderr


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ENTRY = '[[webhook]]\nurl = "{url}"\nqueue = "billing/orders"\nsecret = "{secret}"\n'
OPEN = "allow_private = true\nallow_http = true\n"


def test_a_webhook_that_is_not_reached_is_named(tmp_path: pathlib.Path) -> None:
    """With its address, without what may be secret in it, and with what to do; by `check` and by `status`."""
    file = tmp_path / "queuebell.toml"
    url = "http://127.0.0.1:1/hook?token=xyz-hidden"
    file.write_text(ENTRY.format(url=url, secret=SECRET) + OPEN)
    with serving(tmp_path / "data", "--config", str(file)) as bridge:
        bridge.client("queue", "put", "billing/orders", "x")
        while "http://127.0.0.1:1 on billing/orders: its webhook" not in (told := bridge.client("check", code=1)):
            pass
        assert "could not be reached" in told and "check whether the endpoint answers" in told
        assert "no worker is connected" in told and "xyz-hidden" not in told
        assert "its webhook did not receive the wake" in bridge.client("status")


@pytest.mark.parametrize("content", [b"this is no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: pathlib.Path, content: bytes) -> None:
    """Exit code 1 and one line; nothing is written into what is not ours."""
    (tmp_path / "queue.db").write_bytes(content)
    done = perform("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), code=1)
    assert "Traceback" not in done.stderr.decode()
    assert "queue.db" in done.stderr.decode()
    assert (tmp_path / "queue.db").read_bytes() == content
