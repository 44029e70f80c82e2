"""Amazon SQS as moto plays it: a server process of its own, for a module of tests."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.background_server import BackgroundServer

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
"""What the SDK wants in its environment; moto takes anything."""


@functools.cache
def _loader(path: str | None) -> Any:
    from botocore.loaders import create_loader

    return create_loader(path)


def give_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a test the keys, and its SDK the models of the services that another has read: half a client's cost."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("botocore.session.create_loader", _loader)


def moto(**variables: str) -> BackgroundServer:
    """Return a server to be started; its ``url`` is the endpoint, ``variables`` are more of its environment."""
    # -P: the modules beside it are named as the libraries they stand for.
    command = (sys.executable, "-P", str(Path(__file__).with_name("moto_server.py")), "-H", "127.0.0.1", "-p", "0")
    return BackgroundServer(command, r"Running on (http://\S+)", **KEYS, **variables)


def let_pass_at(server: BackgroundServer) -> Callable[[float], Awaitable[None]]:
    """Return what makes time pass for the queues of a server, and for nobody else."""

    async def let_pass(seconds: float) -> None:
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/let-pass/{seconds}") as answer:
            assert answer.status == 204

    return let_pass
