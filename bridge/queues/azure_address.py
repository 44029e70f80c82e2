"""``azure:[NAME][?...]``: whose connection string it means, and what a queue may be called there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from bridge.contract.errors import BadQueueReference, ConfigurationError
from bridge.contract.names import is_token, parse_reference, split_reference

VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
OPTIONS: Final = ("account", "api_version", "encoding")
ENCODINGS: Final = ("base64", "text", "auto")
EMULATOR: Final = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
    # Everybody's: it opens the emulator and nothing else.
    "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
    "QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1;"
)
_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*").fullmatch
_version = re.compile(r"\d{4}-\d{2}-\d{2}").fullmatch
_queue = re.compile(r"[a-z0-9](-?[a-z0-9]+)*").fullmatch


class AzureAddress:
    """A storage account, by the connection string in the environment; `repr` tells no secret.

    ``azure:`` reads ``AZURE_STORAGE_CONNECTION_STRING``, ``azure:NAME`` that with ``_NAME`` behind it, in capitals.
    The account of a queue reference is the storage account's name, or what ``account`` says instead. ``encoding`` is
    how bodies are written and read (`bridge.queues.azure_text`), ``api_version`` what the service is asked to speak.
    Raises `ConfigurationError`.
    """

    def __init__(self, url: str, environment: Mapping[str, str] = os.environ) -> None:
        try:
            parts = urlsplit(url)
            given = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise ConfigurationError("store: the address is malformed") from None
        name = parts.path
        if parts.netloc or parts.fragment or (name and not _name(name)):
            raise ConfigurationError("store: an address of Azure is azure: or azure:NAME, without a host")
        if unknown := set(given) - set(OPTIONS):
            raise ConfigurationError(f"store: {len(unknown)} unknown options; those of azure: are {', '.join(OPTIONS)}")
        self.encoding = given.get("encoding", "base64")
        self.api_version = given.get("api_version")
        if self.encoding not in ENCODINGS:
            raise ConfigurationError(f"store: encoding is one of {', '.join(ENCODINGS)}")
        if self.api_version is not None and not _version(self.api_version):
            raise ConfigurationError("store: api_version is a date, as in 2025-11-05")
        variable = f"{VARIABLE}_{name.upper().replace('-', '_')}" if name else VARIABLE
        text = environment.get(variable, "").strip()
        if not text:
            raise ConfigurationError(f"store: the environment has no {variable}")
        fields = _fields(text)
        if fields.get("usedevelopmentstorage", "").lower() == "true":
            text, fields = EMULATOR, _fields(EMULATOR)
        self.connection_string = text
        self.endpoint = _endpoint(fields, variable)
        account = given.get("account") or fields.get("accountname") or _account_in(self.endpoint)
        if not is_token(account):
            raise ConfigurationError(f"store: {variable} tells no AccountName; say ?account=NAME in the address")
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


def _fields(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";") if part.strip())
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


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
