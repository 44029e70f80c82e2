"""Storage accounts: an address ``azure:[NAME][?...]``, its connection string from the environment, and clients."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import ConfigurationError

VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
CONNECT_S: Final = 5
# Below the 5 s after which some servers close an idle connection, so that no request meets a closed one.
KEEPALIVE_S: Final = 4.0
EMULATOR: Final = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
    # Public: it is the emulator's key.
    "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
    "BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1;"
    "TableEndpoint=http://127.0.0.1:10002/devstoreaccount1;"
)
_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*").fullmatch
_version = re.compile(r"\d{4}-\d{2}-\d{2}").fullmatch


class AzureUrl:
    """A parsed address of Azure; `repr` shows no secret.

    ``azure:`` reads ``AZURE_STORAGE_CONNECTION_STRING``, ``azure:NAME`` the variable with the suffix ``_NAME``, in
    capitals. ``options`` are the valid options, ``key`` is the setting named in errors. Raises `ConfigurationError`.
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
        version = self.given.get("api_version")
        if version is not None and not _version(version):
            raise ConfigurationError(f"{key}: api_version is a date, as in 2025-11-05")
        self.options: dict[str, Any] = {} if version is None else {"api_version": version}
        self._key = key
        self.variable = f"{VARIABLE}_{name.upper().replace('-', '_')}" if name else VARIABLE
        self.connection_string = environment.get(self.variable, "").strip()
        if not self.connection_string:
            raise ConfigurationError(f"{key}: the environment has no {self.variable}")
        self.fields = _fields(self.connection_string)
        if self.fields.get("usedevelopmentstorage", "").lower() == "true":
            self.connection_string, self.fields = EMULATOR, _fields(EMULATOR)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.variable}>"

    def sdk(self, load: Callable[[], Any]) -> Any:
        """Return the class that ``load`` imports; raise `ConfigurationError` with the extra if it is missing."""
        try:
            return load()
        except ImportError:
            raise ConfigurationError(f"{self._key}: azure: needs the extra: {install('azure')}") from None

    @contextlib.asynccontextmanager
    async def client(self, load: Callable[[], Any], answer_s: float, *place: str) -> AsyncIterator[Any]:
        """Yield a client of the class that ``load`` imports; it sends each request once (L6).

        So does aiohttp below it (`queuebell.bridge.queues.http.session`), which would repeat a GET, and so a receive.
        """
        made_by = self.sdk(load)
        from azure.core.pipeline.transport import AioHttpTransport

        from queuebell.bridge.queues.http.session import open_session

        async with open_session(KEEPALIVE_S) as session:
            transport = AioHttpTransport(
                session=session, session_owner=False, connection_timeout=CONNECT_S, read_timeout=answer_s
            )
            try:
                client = made_by.from_connection_string(
                    self.connection_string,
                    *place,
                    transport=transport,
                    retry_total=0,
                    permit_redirects=False,
                    **self.options,
                )
            except ValueError:
                # Its message may contain the secret.
                raise ConfigurationError(
                    f"{self._key}: the connection string, or the api_version, cannot be used"
                ) from None
            async with client:
                yield client


class AzureAccount(AzureUrl):
    """A storage account and a container or table in it.

    The option ``thing`` names it; ``place`` is its value, by default ``default``.
    """

    def __init__(
        self, url: str, key: str, thing: str, default: str, environment: Mapping[str, str] = os.environ
    ) -> None:
        super().__init__(url, key, (thing, "api_version"), environment)
        self.place = self.given.get(thing, default)


def _fields(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";") if part.strip())
    return {key.strip().lower(): value.strip() for key, _, value in pairs}
