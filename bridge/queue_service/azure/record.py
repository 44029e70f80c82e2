"""The promise of what the front door keeps beside the queues: service properties and stored access policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bridge.queue_service.azure.policies import Policy
    from bridge.queue_service.azure.properties import ServiceProperties


class Records(Protocol):
    """What was set, by account and by queue; it survives a restart where the queues do.

    Reading costs nothing. Setting returns when it is kept, and raises `StoreError` where it cannot be.
    """

    def properties(self, account: str) -> ServiceProperties:
        """Return the properties set last, or the defaults."""
        ...

    async def change_properties(self, account: str, change: Callable[[ServiceProperties], ServiceProperties]) -> None:
        """Keep what ``change`` makes of the properties set last, with no other change between; it may raise."""
        ...

    def policies(self, queue: str) -> Sequence[Policy]:
        """Return the stored access policies of a queue as it stands, none by default.

        They end with the queue, by whatever door it is deleted: one of the same name has none of them.
        """
        ...

    async def set_policies(self, queue: str, policies: Sequence[Policy]) -> None:
        """Keep the policies of a queue as it stands; raises `QueueNotFound`."""
        ...
