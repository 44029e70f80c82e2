"""Who asks for KEDA, and whether they may: by the keys and grants of every other way in.

KEDA itself shows a certificate, or sends what the worker's container has in its environment (``apiKeyFromEnv``); a
proxy before this port may add ``authorization``. Who may look at a queue may be told of its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from bridge.contract.address import sender_of
from bridge.core.grants import Verb
from bridge.core.jwks import Mistimed
from bridge.core.keys import PREFIX, Identity
from bridge.core.sans import Certificate
from bridge.observe.facts import AccessRefused, Fact
from bridge.service.access.watch import AccessWatch

_NOT_GIVEN: Final = (
    "this bridge asks for a key: name in apiKeyFromEnv the variable of the worker's container that has it"
    " (apiKeyFromEnv: QUEUEBELL_API_KEY), or have KEDA show a certificate (tlsClientCert of its TriggerAuthentication)"
)
_NOT_KNOWN: Final = "the key is not known here, was revoked, or has expired"
_STRANGE: Final = "no principal here is named by this certificate, and no key was given"
HELD_MAX: Final = 500
"""Refusals that are held at once: each takes the place of a call, and the others need theirs."""
_PAST_RATE: Final = "slow down: this principal may not come so often"


class Refused(Exception):
    """There is no answer: ``code`` is ``unauthenticated``, ``forbidden``, ``limit``, ``uncounted`` or ``unknown``."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class Caller(msgspec.Struct, frozen=True):
    """Who calls, as far as the connection and the call tell."""

    address: str
    authorization: tuple[str, ...] = ()
    certificate: Certificate | None = None


class Door:
    """Lets in who may look, where an access list is kept; without one everybody may."""

    def __init__(self, access: AccessWatch | None, tell: Callable[[Fact], None]) -> None:
        self.access: Final = access
        self._tell = tell
        self._held = 0

    async def admit(self, caller: Caller, key: str | None, queue: str) -> Identity | None:
        """Return who asks for a queue, None where nobody is asked; ``key`` came within the message.

        Raises `Refused`, later for who is refused again and again, as long as not too many are.
        """
        if self.access is None:
            return None
        identity, why = await self._identify(self.access, caller, key)
        refused = self._judge(self.access, identity, queue, why)
        if refused is None:
            return identity
        self.refuse(refused, identity, queue, caller.address)
        who = "/" + sender_of(caller.address) if identity is None else identity.principal.name
        held_s = self.access.refusals.hold_s(who, self.access.clock())
        if held_s and self._held < HELD_MAX:
            self._held += 1
            try:
                await asyncio.sleep(held_s)
            finally:
                self._held -= 1
        raise refused

    def refuse(self, refused: Refused, identity: Identity | None, queue: str, address: str) -> None:
        """Have a refusal logged and counted."""
        name = "" if identity is None else identity.principal.name
        self._tell(AccessRefused(refused.code, name, Verb.LOOK.value, queue, address))

    @staticmethod
    async def _identify(access: AccessWatch, caller: Caller, key: str | None) -> tuple[Identity | None, str]:
        """Return who calls, or why nobody is known: what was said aloud counts before what was shown."""
        if not caller.authorization and key is None:
            if caller.certificate is None:
                return None, _NOT_GIVEN
            return access.identify_certificate(caller.certificate), _STRANGE
        if caller.authorization:
            scheme, _, secret = caller.authorization[0].partition(" ")
            secret = secret.strip(" ") if scheme.lower() == "bearer" and len(caller.authorization) == 1 else ""
        else:
            secret = key or ""
        if not secret or secret.startswith(PREFIX):
            return access.identify(secret), _NOT_KNOWN
        try:
            return await access.identify_token(secret), _NOT_KNOWN
        except Mistimed as error:
            return None, str(error)

    @staticmethod
    def _judge(access: AccessWatch, identity: Identity | None, queue: str, why: str) -> Refused | None:
        if identity is None:
            return Refused("unauthenticated", why)
        wait = access.allowance(identity.principal).request(access.clock())
        if not identity.principal.may(Verb.LOOK, queue):
            return Refused("forbidden", f"'{Verb.LOOK.value}' is not granted on {queue or 'any queue'}")
        return Refused("limit", f"{_PAST_RATE}; again in {wait} s") if wait else None
