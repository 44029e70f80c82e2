"""What accounts may do where the bridge asks for keys: each one's principal bounds all its signatures.

Its grants and limits are those that hold at the bridge's own port, and what is used here counts there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from bridge.access.access_watch import AccessWatch
from bridge.access.grants import Principal, Reach, Verb
from bridge.access.put_gate import Ticket
from bridge.access.quota_guard import PastLimit
from bridge.contract.address import sender_of
from bridge.contract.errors import ConfigurationError
from bridge.http.azure.errors import AzureError, busy
from bridge.http.azure.exchange import Request
from bridge.http.azure.operation import Operation
from bridge.observe.facts import AccessRefused, Administered, Fact

_AUDITED: Final = (Verb.MANAGE, Verb.OPERATE)
_PAST_RATE: Final = "Slow down: this account's principal exceeds its request rate; nothing was done. Try again."


class AccountPrincipals:
    """The principals of an access list by account; ``names`` has the name of each account's.

    They are asked anew for each request: a grant that is taken away holds within a second. Raises `ConfigurationError`
    where one is not of the list: what is not granted is not allowed, so such an account could do nothing.
    """

    def __init__(self, access: AccessWatch, names: Mapping[str, str], tell: Callable[[Fact], None]) -> None:
        self.access: Final = access
        self._names = dict(names)
        self._tell = tell
        for account, name in names.items():
            if access.principal(name) is None:
                raise ConfigurationError(
                    f"azure_account: with auth, {account} has the permissions of its principal, but the "
                    f'access file has no principal named {name!r}: set principal = "NAME" in its table, '
                    f"or create it: queuebell key create {name} --access {access.path} --allow "
                    f"put={account}/*"
                )

    def admit(self, call: Request, operation: Operation) -> None:
        """Raise `AzureError` unless the account's principal may do this, and within its rates; tell of it.

        It is ``AuthorizationFailure``, or ``ServerBusy``. A body that is still on its way is believed only where the
        principal may once it has come, too.
        """
        verb, queue = operation.verb, call.reference if call.queue else ""
        known, now = self.of(call.account), self.access.clock()
        allowance = None if known is None else self.access.allowance(known)
        wait = 0 if allowance is None else allowance.request(now)
        principal = self._require(call, operation)
        if allowance is not None and not wait and verb is Verb.PUT:
            wait = allowance.put(now)
        if wait:
            # Its body is not read: that would cost more than another connection.
            raise self.refused("limit", busy(_PAST_RATE, wait, close=not call.whole), call, operation)
        if verb in _AUDITED:
            self._tell(Administered(principal.name, verb.value, queue, call.address, operation.title))
        if not call.whole:
            read = call.read

            async def read_and_ask_again(limit: int, ticket: Ticket | None) -> bytes:
                raw = await read(limit, ticket)
                self._require(call, operation)
                return raw

            call.read = read_and_ask_again

    def seen(self, account: str) -> Reach:
        """Return the queues that an account may know of."""
        principal = self.of(account)
        return Reach() if principal is None else principal.reach(Verb.LOOK)

    def past(self, limit: PastLimit, call: Request, operation: Operation) -> AzureError:
        """Return the refusal (``ServerBusy``) of what an account's principal has as much of as it may."""
        error = busy(f"{str(limit).capitalize()}.", limit.retry_after_s, close=not call.whole)
        return self.refused("limit", error, call, operation)

    def refused(self, reason: str, error: AzureError, call: Request, operation: Operation | None) -> AzureError:
        """Tell that a request is refused, also for its signature; return the error, held where there were too many."""
        # Whose signature does not fit has proven nothing, and is nobody.
        name = "" if reason == "unauthenticated" else self._names.get(call.account, "")
        verb = "" if operation is None else operation.verb.value
        self._tell(AccessRefused(reason, name, verb, call.reference if call.queue else "", call.address))
        # No principal's name has a slash.
        error.held_s = self.access.refusals.hold_s(name or "/" + sender_of(call.address), self.access.clock())
        return error

    def _require(self, call: Request, operation: Operation) -> Principal:
        verb, queue = operation.verb, call.reference if call.queue else ""
        principal = self.of(call.account)
        if principal is None or not principal.may(verb, queue):
            error = AzureError("AuthorizationFailure", f"'{verb.value}' is not granted on {queue or 'any queue'}.")
            raise self.refused("forbidden", error, call, operation)
        return principal

    def of(self, account: str) -> Principal | None:
        """Return the principal of an account, None where the list does not know it any more."""
        name = self._names.get(account)
        return None if name is None else self.access.principal(name)
