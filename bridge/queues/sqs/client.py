"""Clients of Amazon's services, or of compatible servers; each request is sent once (L6)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import ConfigurationError

CONNECT_S: Final = 5
CONNECTIONS: Final = 1000


def check_installed(key: str) -> None:
    """Raise `ConfigurationError` with the extra to install if the SDK is missing; ``key`` begins it."""
    try:
        import aiobotocore.config  # type: ignore[import-untyped]
        import aiobotocore.session  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        raise ConfigurationError(f"{key} needs the extra: {install('sqs')}") from None


@contextlib.asynccontextmanager
async def client(
    service: str, key: str, region: str | None, endpoint: str | None, answer_s: float
) -> AsyncIterator[Any]:
    """Yield a client of ``service`` with the credentials of the environment; ``key`` is as in `check_installed`."""
    check_installed(key)
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    config = AioConfig(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=CONNECT_S,
        read_timeout=answer_s,
        max_pool_connections=CONNECTIONS,
    )
    async with get_session().create_client(service, region_name=region, endpoint_url=endpoint, config=config) as made:
        yield made
