"""What accounts may do where the bridge asks for keys: the grants of each one's principal bound all its signatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from bridge.contract.errors import ConfigurationError
from bridge.core.admission import Ticket
from bridge.core.grants import Principal, Verb
from bridge.http.azure.errors import AzureError
from bridge.http.azure.exchange import Request
from bridge.http.azure.operation import Operation
from bridge.observe.facts import AccessRefused, Administered, Fact
from bridge.service.access.watch import AccessWatch

_AUDITED: Final = (Verb.MANAGE, Verb.OPERATE)


class AccountPrincipals:
    """The principals of an access list by account; ``names`` has the name of each account's.

    They are asked anew for each request: a grant that is taken away holds within a second. Raises `ConfigurationError`
    where one is not of the list: what is not granted is not allowed, so such an account could do nothing.
    """

    def __init__(self, access: AccessWatch, names: Mapping[str, str], tell: Callable[[Fact], None]) -> None:
        self._access = access
        self._names = dict(names)
        self._tell = tell
        for account, name in names.items():
            if access.principal(name) is None:
                raise ConfigurationError(
                    f"azure_account: with auth, {account} may do what its principal may, and the access file has none"
                    f' called {name!r}: principal = "NAME" in its table says which, or make it:'
                    f" queuebell key create {name} --access {access.path} --allow put={account}/*"
                )

    def admit(self, call: Request, operation: Operation) -> None:
        """Raise `AzureError` (``AuthorizationFailure``) unless the account's principal may do this, and tell of it.

        A body that is still on its way is believed only where the principal may once it has come, too.
        """
        principal = self._require(call, operation)
        verb, queue = operation.verb, call.reference if call.queue else ""
        if verb in _AUDITED:
            self._tell(Administered(principal.name, verb.value, queue, call.address, operation.title))
        if not call.whole:
            read = call.read

            async def read_and_ask_again(limit: int, ticket: Ticket | None) -> bytes:
                raw = await read(limit, ticket)
                self._require(call, operation)
                return raw

            call.read = read_and_ask_again

    def sees(self, account: str, queue: str) -> bool:
        """Say whether an account may know that one of its queues is there."""
        principal = self._of(account)
        return principal is not None and principal.may(Verb.LOOK, f"{account}/{queue}")

    def refused(self, reason: str, call: Request, operation: Operation | None) -> None:
        """Tell that a request was refused, also by its signature."""
        # Whose signature does not fit has proven nothing, and is nobody.
        name = "" if reason == "unauthenticated" else self._names.get(call.account, "")
        verb = "" if operation is None else operation.verb.value
        self._tell(AccessRefused(reason, name, verb, call.reference if call.queue else "", call.address))

    def _require(self, call: Request, operation: Operation) -> Principal:
        verb, queue = operation.verb, call.reference if call.queue else ""
        principal = self._of(call.account)
        if principal is None or not principal.may(verb, queue):
            self.refused("forbidden", call, operation)
            raise AzureError("AuthorizationFailure", f"'{verb.value}' is not granted on {queue or 'any queue'}.")
        return principal

    def _of(self, account: str) -> Principal | None:
        name = self._names.get(account)
        return None if name is None else self._access.principal(name)
