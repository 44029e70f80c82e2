"""``azure:[NAME][?...]``: whose connection string it means, and how its blobs and tables are called."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from bridge.contract.errors import (
    ConfigurationError,
    QueuebellError,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)

VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
CONNECT_S: Final = 5
# Below the 5 s after which some servers close an idle connection: a request never meets a connection just closed.
KEEPALIVE_S: Final = 4.0
EMULATOR: Final = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
    # Everybody's: it opens the emulator and nothing else.
    "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
    "BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1;"
    "TableEndpoint=http://127.0.0.1:10002/devstoreaccount1;"
)
_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*").fullmatch
_version = re.compile(r"\d{4}-\d{2}-\d{2}").fullmatch
_LATER: Final = frozenset(
    {
        "AccountBeingCreated", "ContainerBeingDeleted", "ContainerDisabled", "ServerBusy", "TableBeingDeleted",
    }
)  # fmt: skip


class AzureUrl:
    """An address of Azure taken apart; `repr` tells no secret.

    ``azure:`` reads ``AZURE_STORAGE_CONNECTION_STRING``, ``azure:NAME`` that with ``_NAME`` behind it, in capitals.
    ``options`` are the names that may be given, ``key`` the setting that complaints name. Raises
    `ConfigurationError`.
    """

    def __init__(self, url: str, key: str, options: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            parts = urlsplit(url)
            self.given = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise ConfigurationError(f"{key}: the address is malformed") from None
        name = parts.path
        if parts.netloc or parts.fragment or (name and not _name(name)):
            raise ConfigurationError(f"{key}: an address of Azure is azure: or azure:NAME, without a host")
        if set(self.given) - set(options):
            raise ConfigurationError(f"{key}: options of azure: are {', '.join(options)}")
        self.api_version = self.given.get("api_version")
        if self.api_version is not None and not _version(self.api_version):
            raise ConfigurationError(f"{key}: api_version is a date, as in 2025-11-05")
        self.variable = f"{VARIABLE}_{name.upper().replace('-', '_')}" if name else VARIABLE
        self.connection_string = environment.get(self.variable, "").strip()
        if not self.connection_string:
            raise ConfigurationError(f"{key}: the environment has no {self.variable}")
        self.fields = _fields(self.connection_string)
        if self.fields.get("usedevelopmentstorage", "").lower() == "true":
            self.connection_string, self.fields = EMULATOR, _fields(EMULATOR)

    def __repr__(self) -> str:
        return f"<AzureUrl {self.variable}>"


class AzureAccount:
    """A storage account (`AzureUrl`) and one thing in it; `repr` tells no secret.

    ``thing`` is the one option beside ``api_version``: what it names is ``place``, by default ``default``. ``key`` is
    the setting that complaints name. Raises `ConfigurationError`.
    """

    def __init__(
        self, url: str, key: str, thing: str, default: str, environment: Mapping[str, str] = os.environ
    ) -> None:
        where = AzureUrl(url, key, (thing, "api_version"), environment)
        self.place = where.given.get(thing, default)
        self.options: dict[str, Any] = {} if where.api_version is None else {"api_version": where.api_version}
        self.connection_string = where.connection_string
        self._key = key

    def __repr__(self) -> str:
        return f"<AzureAccount {self.place}>"

    @contextlib.asynccontextmanager
    async def client(self, make: Callable[..., Any], answer_s: float) -> AsyncIterator[Any]:
        """Give what ``make`` (an SDK's ``from_connection_string``) makes; it tries each request once (L6).

        So does aiohttp below it, which would otherwise repeat GET, PUT and DELETE after a connection that broke.
        """
        from aiohttp import ClientSession, DummyCookieJar, TCPConnector
        from azure.core.pipeline.transport import AioHttpTransport

        session = ClientSession(
            connector=TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
        )
        session._retry_connection = False  # the only switch there is (aiohttp 3.14)
        async with session:
            transport = AioHttpTransport(
                session=session, session_owner=False, connection_timeout=CONNECT_S, read_timeout=answer_s
            )
            try:
                client = make(
                    self.connection_string,
                    self.place,
                    transport=transport,
                    retry_total=0,
                    permit_redirects=False,
                    **self.options,
                )
            except ValueError:
                # Its words may hold what it read.
                raise ConfigurationError(f"{self._key}: the connection string cannot be used") from None
            async with client:
                yield client


def _fields(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";") if part.strip())
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def meaning(error: Any) -> QueuebellError:
    """Return what to raise for an error of an Azure SDK that is not about one blob or entity."""
    from aiohttp import ClientConnectorError
    from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceRequestTimeoutError

    status = getattr(error, "status_code", None)
    if isinstance(error, HttpResponseError) and status is not None:
        said = code_of(error) or str(status)
        if status in (429, 503) or said in _LATER:
            return StoreUnavailable(f"azure: not now: {said}")
        if status >= 500:
            return UnknownOutcome(f"azure: the service failed: {said}")
        return StoreError(f"azure: refused: {said}; nothing was changed. Check the key, the rights and the api_version")
    if isinstance(error, ServiceRequestTimeoutError):
        return StoreUnavailable("azure: the service cannot be reached; nothing was sent")
    # The SDK says "request error" for connections that broke while it waited for the answer, too.
    if isinstance(error, ServiceRequestError) and isinstance(error.inner_exception, ClientConnectorError):
        return StoreUnavailable("azure: the service cannot be reached; nothing was sent")
    return UnknownOutcome(f"azure: no answer: {type(error).__name__}")


def code_of(error: Any) -> str:
    """Return the service's code; empty for an error that did not come from it."""
    code = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))  # an enumeration where the SDK knows the code
