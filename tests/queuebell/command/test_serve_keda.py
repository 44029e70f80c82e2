"""`queuebell serve --keda`: as a process, what is refused, and what is loaded only for it."""

from __future__ import annotations

import asyncio
import pathlib
import re
import signal
import subprocess
import sys
from typing import Any

import grpc
import pytest

from bridge.brokers.extras import install
from bridge.contract.errors import ConfigurationError
from bridge.core.keda.asked import KedaStore
from queuebell.assembly import assemble
from queuebell.settings import Settings, load
from tests.support.access import written
from tests.support.certificates import write_self_signed
from tests.support.keda import Keda
from tests.support.processes import PATIENCE_S, ROOT, Processes, environment

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
        ({"keda": "0.0.0.0:0"}, "keda: an address that others can reach"),
        ({"keda": "127.0.0.1:0", "keda_cert": "x"}, "keda_key: HTTPS needs both"),
        ({"keda": "127.0.0.1:0", "keda_key": "x"}, "keda_cert: HTTPS needs both"),
        ({"keda": "127.0.0.1:0", "keda_cert": "x", "keda_key": "y"}, "keda_cert: cannot use"),
        ({"keda": "127.0.0.1:0", "keda_client_ca": "x"}, "keda_client_ca: nobody is asked who they are"),
        *(
            ({key: "x"}, f"{key}: is for KEDA's port, which keda (--keda HOST:PORT) asks for")
            for key in ("keda_cert", "keda_key", "keda_client_ca")
        ),
        ({"keda_store": (KedaStore(name="a", url="redis://h"),)}, "keda_store: is for KEDA's port"),
        (
            {"keda": "127.0.0.1:0", "keda_store": (KedaStore(name="a", url="redis://h"),) * 2},
            "keda_store: name: two are called a",
        ),
        ({"keda": "127.0.0.1:0", "keda_store": (KedaStore(name="a", url="memory:a"),)}, "keda_store: url"),
    ],
)
def test_what_is_refused(given: dict[str, Any], told: str, tmp_path: pathlib.Path) -> None:
    """Each mistake names its key."""
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        assemble(settings(tmp_path, **given), in_memory=True)


def test_a_public_port_needs_keys_and_tls_or_a_word(tmp_path: pathlib.Path) -> None:
    """As the bridge's own port: its certificates serve here as well where none of its own are named."""
    cert, key = map(str, write_self_signed(tmp_path))
    written(tmp_path / "access.json", {"keda": {"look": ["*"]}})
    public = {"keda": "0.0.0.0:0"}
    for given in ({"tls_cert": cert, "tls_key": key}, {"auth": True}, {"keda_cert": cert, "keda_key": key}):
        with pytest.raises(ConfigurationError, match="keda: an address that others can reach"):
            assemble(settings(tmp_path, **public, **given), in_memory=True)
    for given in (
        {"auth": True, "tls_cert": cert, "tls_key": key},
        {"auth": True, "keda_cert": cert, "keda_key": key},
        {"insecure_public": True},
    ):
        made = assemble(settings(tmp_path, **public, **given), in_memory=True)
        assert made.keda is not None
    assert assemble(settings(tmp_path), in_memory=True).keda is None


def test_stores_stand_in_the_file(tmp_path: pathlib.Path) -> None:
    """By name and address; what is unknown there is named."""
    file = tmp_path / "q.toml"
    file.write_text('keda = "127.0.0.1:8475"\n[[keda_store]]\nname = "east"\nurl = "redis://127.0.0.1:1"\n')
    assert load(str(file), environment={}).keda_store == (KedaStore(name="east", url="redis://127.0.0.1:1"),)
    file.write_text('[[keda_store]]\nname = "east"\nurll = "redis://127.0.0.1:1"\n')
    with pytest.raises(ConfigurationError, match="urll"):
        load(str(file), environment={})


@pytest.mark.parametrize("module", ["grpc", "google.protobuf.descriptor_pb2"])
def test_a_missing_extra_is_named(module: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it, before anything is started."""
    for loaded in ("server", "messages"):
        monkeypatch.delitem(sys.modules, f"bridge.service.keda.{loaded}", raising=False)
        monkeypatch.delattr(f"bridge.service.keda.{loaded}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=re.escape(install("keda"))):
        assemble(settings(tmp_path, keda="127.0.0.1:0"), in_memory=True)


def test_nothing_of_it_is_loaded_before_it_is_asked_for(tmp_path: pathlib.Path) -> None:
    """A bridge without it, and the whole public face, load neither grpcio nor protobuf."""
    program = """
import sys
import queuebell
from queuebell.assembly import assemble
from queuebell.settings import Settings
assemble(Settings(listen="127.0.0.1:0"), in_memory=True)
print(sorted({"grpc", "google.protobuf", "bridge.service.keda"} & set(sys.modules)))
"""
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]"
