"""``azure:[NAME][?...]``: whose connection string it means, and what a queue may be called there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from bridge.contract.errors import BadQueueReference, ConfigurationError
from bridge.contract.names import is_token, parse_reference, split_reference
from bridge.queues.azure.account import AzureUrl

OPTIONS: Final = ("account", "api_version", "encoding")
ENCODINGS: Final = ("base64", "text", "auto")
_queue = re.compile(r"[a-z0-9](-?[a-z0-9]+)*").fullmatch


class AzureAddress(AzureUrl):
    """A storage account for queues.

    The account of a queue reference is the storage account's name, or what ``account`` says instead. ``encoding`` is
    how bodies are written and read (`bridge.queues.azure.text`), ``api_version`` what the service is asked to speak.
    Raises `ConfigurationError`.
    """

    def __init__(self, url: str, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(url, "store", OPTIONS, environment)
        self.encoding = self.given.get("encoding", "base64")
        if self.encoding not in ENCODINGS:
            raise ConfigurationError(f"store: encoding is one of {', '.join(ENCODINGS)}")
        self.endpoint = _endpoint(self.fields, self.variable)
        self.account = self.given.get("account") or self.fields.get("accountname") or _account_in(self.endpoint)
        if not is_token(self.account):
            raise ConfigurationError(f"store: {self.variable} tells no AccountName; say ?account=NAME in the address")

    def name(self, reference: str) -> str:
        """Return the name of the queue. Raises `BadQueueReference` for another account, and for what Azure refuses."""
        account, queue = split_reference(parse_reference(reference))
        if account != self.account:
            raise BadQueueReference(
                "the reference names another account than the store's address; azure:?account=NAME would call it so"
            )
        if not 3 <= len(queue) <= 63 or not _queue(queue):
            raise BadQueueReference(
                "an Azure queue's name is 3 to 63 small letters, digits and single dashes between them"
            )
        return queue


def _endpoint(fields: Mapping[str, str], variable: str) -> str:
    if given := fields.get("queueendpoint"):
        return given.rstrip("/")
    account = fields.get("accountname")
    if not account:
        raise ConfigurationError(f"store: {variable} has neither AccountName nor QueueEndpoint")
    scheme = fields.get("defaultendpointsprotocol", "https")
    return f"{scheme}://{account}.queue.{fields.get('endpointsuffix', 'core.windows.net')}"


def _account_in(endpoint: str) -> str:
    return (urlsplit(endpoint).hostname or "").partition(".")[0]
