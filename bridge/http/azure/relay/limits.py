"""What passes through the relay, within the rates of the accounts' principals.

Only the endpoint can tell whether a signature is good. So a request counts once it was answered with success: nobody
uses up what another may, and what is on its way at the same moment may come on top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from bridge.access.grants import Verb
from bridge.contract.address import sender_of
from bridge.http.azure.address import Resource, locate
from bridge.http.azure.errors import AzureError, busy
from bridge.http.server.body import unread
from bridge.observe.facts import AccessRefused, Fact

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from bridge.access.access_watch import AccessWatch
    from bridge.http.server.connection import Connection

_PAST_RATE = "Slow down: this account's principal exceeds its request rate; nothing was relayed. Try again."


class AccountLimits:
    """The limits of accounts: ``names`` has those whose principal is called otherwise; one of nobody has none."""

    def __init__(self, access: AccessWatch, names: Mapping[str, str], tell: Callable[[Fact], None]) -> None:
        self._access = access
        self._names = dict(names)
        self._tell = tell

    async def admit(self, request: BaseRequest, target: str, host: str) -> Callable[[], None] | None:
        """Return what counts a request once it was carried out, None where nothing does.

        Raises `AzureError` (``ServerBusy``) where its account's principal may not come now, after a while where there
        were too many of these.
        """
        try:
            at = locate(target, host)
        except AzureError:
            # Whatever it is, the endpoint will say.
            return None
        if request.method == "OPTIONS":
            # A page asks first, unsigned, and is answered.
            return None
        access = self._access
        principal = access.principal(self._names.get(at.account, at.account))
        if principal is None:
            return None
        allowance, now = access.allowance(principal), access.clock()
        put = request.method == "POST" and at.resource is Resource.MESSAGES
        wait = allowance.wait(now, put=put)
        if wait:
            queue = f"{at.account}/{at.queue}" if at.queue else ""
            address = request.remote or ""
            self._tell(AccessRefused("limit", principal.name, Verb.PUT.value if put else "", queue, address))
            # Who it is was not proven: the line is that of its address.
            held = access.refusals.hold_s("/" + sender_of(address), now)
            if held:
                await cast("Connection", request.protocol).hold(held)
            raise busy(_PAST_RATE, wait, close=unread(request))

        def used() -> None:
            allowance.request_more(access.clock())
            allowance.put_more(access.clock(), int(put))

        return used
