"""Stores of other systems: no SDK before it is needed, and a word about the extra where it is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.queues import open_store
from tests.support.processes import ROOT, environment


def test_no_sdk_is_loaded_before_the_first_call() -> None:
    """Opening a store of another system loads neither its SDK nor a web client."""
    program = """
import sys
from bridge.queues import open_store
for url in ("sqs://eu-central-1", "azure:", "nats://127.0.0.1:1", "redis://127.0.0.1:1"):
    open_store(url)
print(sorted({"aiobotocore", "botocore", "azure", "nats", "redis", "aiohttp"} & set(sys.modules)))
"""
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(AZURE_STORAGE_CONNECTION_STRING="UseDevelopmentStorage=true"),
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == "[]"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("sqs://eu-central-1", "aiobotocore.session", "sqs"),
        ("azure:?account=shop", "azure.storage.queue.aio", "azure"),
        ("nats://127.0.0.1:1", "nats.aio.client", "nats"),
        ("redis://127.0.0.1:1", "redis.asyncio", "redis"),
    ],
)
async def test_a_missing_sdk_is_named(url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not installed the extra is told how."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    monkeypatch.setitem(sys.modules, module, None)
    async with open_store(url) as store:
        with pytest.raises(ConfigurationError, match=rf"pip install '\.\[{extra}\]'"):
            await store.receive("shop/orders")
