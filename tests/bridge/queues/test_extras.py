"""Stores of other systems: no SDK before it is needed, and a word about the extra where it is missing."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import pytest

from bridge.brokers.extras import install
from bridge.contract.errors import ConfigurationError
from bridge.queues import open_store
from listeners import PULL_ONLY, Listener, Message
from listeners.session.opening import name_of
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


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("sqs://eu-central-1", "aiobotocore.session", "sqs"),
        ("azure:?account=shop", "azure.storage.queue.aio", "azure"),
        ("nats://127.0.0.1:1", "nats.aio.client", "nats"),
        ("redis://127.0.0.1:1", "redis.asyncio", "redis"),
        ("postgres://127.0.0.1:1/db", "asyncpg", "postgres"),
    ],
)
async def test_a_missing_sdk_is_named(url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not installed the extra is told how, by a listener at its start: with a bridge and without."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    monkeypatch.setitem(sys.modules, module, None)
    async with open_store(url) as store:
        with pytest.raises(ConfigurationError, match=re.escape(install(extra))):
            await store.receive("shop/orders")
    for bridge in (PULL_ONLY, "http://127.0.0.1:1"):
        asked = open_store(url)
        monkeypatch.setattr(asked, "receive", lambda *_, **__: pytest.fail("the store was asked"))
        with pytest.raises(ConfigurationError, match=re.escape(install(extra))):
            async with asyncio.timeout(100):
                await Listener(asked, "shop/orders", _handle, bridge=bridge, handle_signals=False).run()
        await asked.close()


async def _handle(message: Message) -> None:
    """Succeed."""


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://LOCALHOST:8470/", "http://127.0.0.1:8470"),
        ("redis://me:s3cret@host/2?prefix=s3cret", "redis://host:6379/2"),
        ("postgres://me:s3cret@host/db", "postgres://host:5432/db"),
        ("nats://me:s3cret@host", "nats://host:4222"),
        ("azure:", "azure account devstoreaccount1"),
        ("sqs://eu-west-1", "sqs://eu-west-1"),
        ("sqs://eu-west-1/shop?endpoint=https://me:s3cret@host:1", "sqs://eu-west-1/shop at host:1"),
        ("memory:x", "memory:x"),
        ("sqlite:///var/lib/x.db", "sqlite:/var/lib/x.db"),
    ],
)
def test_a_store_is_named_by_its_address_without_secrets(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever the log says of it."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    assert name_of(open_store(url)) == name
