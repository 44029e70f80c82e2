"""A bridge on an engine lets in whom one with its own queues lets in, and lets nobody use more."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable

import pytest

from bridge.core.grants import Verb
from bridge.queues.http import HttpStore
from bridge.service.access.watch import AccessWatch
from tests.bridge.http.api import test_access, test_limits
from tests.support.access import written
from tests.support.web import serving

OF_QUEUES = [route for route in test_access.WANTED if route[1].startswith("/v1/queues")]


@pytest.mark.parametrize(("method", "path"), OF_QUEUES, ids=[f"{method} {path}" for method, path in OF_QUEUES])
async def test_each_call_with_each_verb(method: str, path: str, tmp_path: pathlib.Path) -> None:
    """The matrix of the calls on queues, and what a refusal leaves there: nothing."""
    file = tmp_path / "access.json"
    queue = test_access.GRANTED
    secrets = written(file, {v.value: {v.value: ["*" if v is Verb.OPERATE else queue]} for v in Verb})
    async with serving() as behind, HttpStore(behind.server.url) as engine, AccessWatch(file) as watch:
        async with serving(store=engine, access=watch) as served:
            await test_access.test_each_route_with_each_verb(method, path, (served, secrets, file))


@pytest.mark.parametrize(
    "asked",
    [
        test_limits.test_requests_a_second_over_http,
        test_limits.test_puts_a_second,
        test_limits.test_queues,
        test_limits.test_bytes_that_wait,
    ],
)
async def test_the_limits_of_a_principal(
    asked: Callable[[test_limits.Limited], Awaitable[None]], tmp_path: pathlib.Path
) -> None:
    """Requests, puts, queues and bytes that wait."""
    async with serving() as behind, HttpStore(behind.server.url) as engine:
        async with test_limits.limiting(tmp_path / "access.json", engine) as limited:
            await asked(limited)
