"""Azurite's blob and table services, each on a free port."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.azurite import ACCOUNT, KEY
from tests.support.background_server import BackgroundServer
from tests.support.processes import ROOT, free_port

_BINARIES = ROOT / ".ci" / "node" / "node_modules" / ".bin"


def azurite(service: str, folder: Path) -> BackgroundServer:
    """Return the ``blob`` or ``table`` service, to be started; its ``url`` is its host and port."""
    name = f"azurite-{service}"
    binary = str(_BINARIES / name) if (_BINARIES / name).exists() else shutil.which(name)
    assert binary, f"no {name}: npm install --prefix {_BINARIES.parents[1]} $(cat .ci/npm-packages)"
    # The table service does not tell which port it took by itself.
    port = str(free_port()) if service == "table" else "0"
    command = (binary, f"--{service}Port", port, f"--{service}Host", "127.0.0.1", "--location", str(folder))
    return BackgroundServer((*command, "--disableTelemetry"), r"successfully \w+ on (?:http://)?(\S+)", cwd=folder)


def connection_string(service: str, url: str) -> str:
    """Return what an SDK takes for this service at ``url``."""
    endpoint = f"{service.capitalize()}Endpoint=http://{url}/{ACCOUNT}"
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoint};"
