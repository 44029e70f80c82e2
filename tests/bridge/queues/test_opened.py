"""What a store in another system says before it is connected: its name, its queues' fingerprints, its extra."""

from __future__ import annotations

import sys

import pytest

from bridge.brokers.extras import install
from bridge.contract.errors import ConfigurationError
from bridge.queues import open_store

QUEUE = "shop/orders"
SHOP = "AccountName=shop;AccountKey=czNjcmV0"
SIGNED = "QueueEndpoint=https://shop.queue.core.windows.net/;SharedAccessSignature=s3cret"
STORES = [
    ("sqs://eu-central-1", "", "sqs://eu-central-1", "b556ff9b9e8f9a8ff47f809eda5e63dd"),
    ("sqs://eu-central-1/test-?wait=20", "", "sqs://eu-central-1/test-", "3c50afafe484a29cd703d4de88b65abb"),
    ("sqs://eu-central-1?account=shop", "", "sqs://eu-central-1", "2f0641457846b3be757bead8a4377ce2"),
    (
        "sqs://eu-central-1/a?endpoint=http://me:s3cret@moto:5000",
        "",
        "sqs://eu-central-1/a at moto:5000",
        "54420ba4277340ca3d69cd57f182dcb4",
    ),
    ("nats://127.0.0.1:4222", "", "nats://127.0.0.1:4222", "57472b2c37fce9253c7c818ffc2ee6b7"),
    (
        "nats://me:s3cret@b:4222,a:4222?prefix=test&name=x",
        "",
        "nats://b:4222,a:4222",
        "5127c555c8e6bb355da59422c760b25e",
    ),
    ("nats://a:4222,b:4222?prefix=test", "", "nats://a:4222,b:4222", "5127c555c8e6bb355da59422c760b25e"),
    ("azure:", SHOP, "azure account shop", "16236b44ce5df224688c943cb43edb73"),
    ("azure:", SHOP + ";EndpointSuffix=example", "azure account shop", "a6f357ca874b7ec6d03b7cde61696ed0"),
    ("azure:", SIGNED, "azure account shop", "16236b44ce5df224688c943cb43edb73"),
]
"""Address, connection string of Azure, name in words, fingerprint: listeners and bridges of all versions compare it."""


@pytest.mark.parametrize(("url", "connection", "name", "fingerprint"), STORES)
def test_a_store_is_called_without_secrets_and_its_queues_are_known(
    url: str, connection: str, name: str, fingerprint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same place has the same fingerprint, whatever its address says beside."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
    store = open_store(url)
    assert str(store) == name
    assert store.fingerprint(QUEUE) == fingerprint


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("sqs://eu-central-1", "aiobotocore.session", "sqs"),
        ("nats://127.0.0.1:4222", "nats", "nats"),
        ("azure:", "azure.storage.queue.aio", "azure"),
    ],
)
def test_a_client_library_that_is_missing_is_named(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how to install it, before anything is asked of a server; with it nothing is said."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", SHOP)
    store = open_store(url)
    store.check_client()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError) as refused:
        store.check_client()
    assert str(refused.value).endswith(f": {install(extra)}")
