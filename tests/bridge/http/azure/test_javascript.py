"""The JavaScript SDK, unchanged, as client of the Azure endpoint: Node and npm packages, installed by ``.ci/run``."""

from __future__ import annotations

import asyncio
import pathlib
import shutil

import pytest

from tests.support.azure import connection_string, serving_azure
from tests.support.processes import ROOT, environment

pytestmark = pytest.mark.system

SCRIPT = pathlib.Path(__file__).with_name("javascript.cjs")
PACKAGES = ROOT / ".ci" / "node" / "node_modules"


async def test_every_operation_of_the_sdk() -> None:
    """By the emulator's own connection string, and by one that names the endpoint.

    ``UseDevelopmentStorage=true`` stands for a fixed port; the SDK's own setting for a proxy leads it to ours.
    """
    node = shutil.which("node")
    assert node, "no node"
    async with serving_azure() as front:
        emulator = f"UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://127.0.0.1:{front.server.port}"
        process = await asyncio.create_subprocess_exec(
            node,
            str(SCRIPT),
            emulator,
            connection_string(front.server.port),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # The address of the emulator is one that proxies are seldom asked for.
            env={**environment(NODE_PATH=str(PACKAGES)), "NO_PROXY": "", "no_proxy": ""},
        )
        try:
            async with asyncio.timeout(500):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert (process.returncode, said.decode().split()) == (0, ["done", "done"]), said.decode()
        # Every put through it was its own trigger.
        assert await front.bridge.store.depth("devstoreaccount1/js-orders") is None
