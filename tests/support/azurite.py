"""Azurite, the emulator of Azure's storage services, on a free port: a system package, installed by ``.ci/run``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.background_server import BackgroundServer
from tests.support.processes import ROOT

API_VERSION = "2025-11-05"
"""The newest that the version in ``.ci/npm-packages`` speaks; the SDK asks for a newer one by itself."""
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_BINARY = ROOT / ".ci" / "node" / "node_modules" / ".bin" / "azurite-queue"


def azurite_queue(folder: Path, *options: str) -> BackgroundServer:
    """Return its queue service, to be started; the ``url`` has no account in it. Data go to ``folder``."""
    binary = str(_BINARY) if _BINARY.exists() else shutil.which("azurite-queue")
    assert binary, f"no azurite-queue: npm install --prefix {_BINARY.parents[2]} $(cat .ci/npm-packages)"
    command = (binary, "--queuePort", "0", "--queueHost", "127.0.0.1", "--location", str(folder), "--disableTelemetry")
    return BackgroundServer((*command, *options), r"listens on (http://\S+)", cwd=folder)


def connection_string(url: str) -> str:
    """Return what an SDK takes for the emulator at ``url``."""
    scheme = url.partition(":")[0]
    return f"DefaultEndpointsProtocol={scheme};AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint={url}/{ACCOUNT};"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    """Azurite's queue service for a module of tests; they are marked `system`."""
    with azurite_queue(tmp_path_factory.mktemp("azurite")) as server:
        yield server
