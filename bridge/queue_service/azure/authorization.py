"""The promise of an authorizer: from a request as its signature sees it to what it may do."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Protocol

import msgspec

from bridge.queue_service.azure.operation import Operation


class Signed(msgspec.Struct, frozen=True, gc=False):
    """A request as a signature sees it; nothing of it is checked but that it could be taken apart."""

    method: str
    path: str
    """As it came, percent-encoding and all, without the query: ``/devstoreaccount1/orders/messages``."""
    query: Mapping[str, str]
    """Decoded, names in lower case; the values of equal names are sorted and joined by commas."""
    headers: Mapping[str, str]
    """Asked for by names in lower case: a dict has them so, any other mapping does not tell cases apart."""
    account: str
    """The account addressed, without the ``-secondary`` of its second endpoint."""
    secondary: bool = False
    path_style: bool = True
    """Whether the account stands in the path, as the emulator has it, or in the host name."""
    queue: str = ""
    """The queue addressed, or empty where it is the account."""
    secure: bool = False
    """Whether the request came by HTTPS."""
    address: str = ""
    """The address it came from, without a port."""


class Grant(Protocol):
    """What one authenticated request may do."""

    def allows(self, operation: Operation, queue: str) -> bool:
        """Say whether ``operation`` on ``queue`` (empty for the account) is granted."""
        ...


class Authorizer(Protocol):
    """Tells who may do what; knows accounts, keys and stored policies."""

    def authorize(self, signed: Signed, now: datetime.datetime) -> Grant:
        """Check the signature of a request; raises `AzureError`, above all ``AuthenticationFailed``."""
        ...
