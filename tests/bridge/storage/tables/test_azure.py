"""What of the Azure table the conformance suite does not ask: a table that nobody has made."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from bridge.contract.errors import ConfigurationError, StoreError
from bridge.queues.azure.account import VARIABLE
from bridge.storage.tables.azure import AzureTable
from tests.bridge.queues.scripted_server import ScriptedServer
from tests.support.azurite_storage import connection_string


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.insert("p", "r", b"x"),
        lambda table: table.get("p", "r"),
        lambda table: table.entities("p"),
    ],
)
async def test_a_table_that_is_not_there_is_named(
    call: Callable[[AzureTable], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how to make it, and as what another try may find mended; nothing is said of keys and rights."""
    told = {"odata.error": {"code": "TableNotFound", "message": {"lang": "en-US", "value": "no table"}}}

    def answer(request: web.Request, _: bytes) -> web.Response:
        return web.Response(status=404, text=json.dumps(told), content_type="application/json")

    async with ScriptedServer(answer) as server:
        monkeypatch.setenv(VARIABLE, connection_string("table", server.url.removeprefix("http://")))
        async with AzureTable("azure:?table=entries") as table:
            with pytest.raises(StoreError) as missing:
                await call(table)
    assert not isinstance(missing.value, ConfigurationError)
    said = str(missing.value)
    assert said.startswith("azure: the table 'entries' is not there; make it")
    assert said.endswith("az storage table create --name entries")
