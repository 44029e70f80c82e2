"""``azure:[NAME][?...]``: whose connection string it means, and what a queue may be called there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from bridge.azure_account import AzureUrl
from bridge.contract.errors import BadQueueReference, ConfigurationError
from bridge.contract.names import is_token, parse_reference, split_reference

OPTIONS: Final = ("account", "api_version", "encoding")
ENCODINGS: Final = ("base64", "text", "auto")
_queue = re.compile(r"[a-z0-9](-?[a-z0-9]+)*").fullmatch


class AzureAddress:
    """A storage account for queues (`AzureUrl`); `repr` tells no secret.

    The account of a queue reference is the storage account's name, or what ``account`` says instead. ``encoding`` is
    how bodies are written and read (`bridge.queues.azure_text`), ``api_version`` what the service is asked to speak.
    Raises `ConfigurationError`.
    """

    def __init__(self, url: str, environment: Mapping[str, str] = os.environ) -> None:
        where = AzureUrl(url, "store", OPTIONS, environment)
        given, fields = where.given, where.fields
        self.encoding = given.get("encoding", "base64")
        self.api_version = where.api_version
        if self.encoding not in ENCODINGS:
            raise ConfigurationError(f"store: encoding is one of {', '.join(ENCODINGS)}")
        self.connection_string = where.connection_string
        self.endpoint = _endpoint(fields, where.variable)
        account = given.get("account") or fields.get("accountname") or _account_in(self.endpoint)
        if not is_token(account):
            raise ConfigurationError(f"store: {where.variable} tells no AccountName; say ?account=NAME in the address")
        self.account = account

    def __repr__(self) -> str:
        return f"<AzureAddress {self.endpoint}>"

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
