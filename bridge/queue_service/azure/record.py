"""The promise of what the front door keeps beside the queues: service properties and stored access policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.queue_service.azure.policies import Policy
    from bridge.queue_service.azure.properties import ServiceProperties


class Records(Protocol):
    """What was set, by account and by queue; it survives a restart where the queues do.

    Reading costs nothing. Setting returns when it is kept, and raises `StoreError` where it cannot be.
    """

    def properties(self, account: str) -> ServiceProperties:
        """Return the properties set last, or the defaults."""
        ...

    async def set_properties(self, account: str, properties: ServiceProperties) -> None:
        """Keep the properties of an account."""
        ...

    def policies(self, queue: str) -> Sequence[Policy]:
        """Return the stored access policies of a queue reference, none by default."""
        ...

    async def set_policies(self, queue: str, policies: Sequence[Policy]) -> None:
        """Keep the policies of a queue reference; none of them forgets it."""
        ...
