"""The configuration of one webhook: ``[[webhook]]`` with url, queue and secret."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import msgspec

from queuebell.bridge.contract.errors import BadQueueReference, ConfigurationError
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.http.webhooks.addresses import Target, check_url
from queuebell.bridge.queues.base import digest_of

WEBHOOKS_MAX = 1000
SECRET_PREFIX = "whsec_"
KEY_BYTES = (24, 64)


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One endpoint and its queue."""

    url: str
    queue: str
    secret: str | tuple[str, ...]
    """``whsec_...``; a list while secrets are rotated: each signs."""
    allow_private: bool = False
    """Private addresses, other ports, and addresses in place of names. Defaults to false."""
    allow_http: bool = False
    handshake: bool = True
    """Whether the target must consent (CloudEvents abuse protection) before the first post. Defaults to true."""

    def __repr__(self) -> str:
        # Without the secret, and the URL's path, which may contain another.
        return f"WebhookSettings(queue={self.queue!r})"


class CheckedWebhook(msgspec.Struct, frozen=True):
    """A webhook's checked settings, parsed."""

    settings: WebhookSettings
    target: Target
    keys: tuple[bytes, ...]


def name_of(webhook: WebhookSettings) -> str:
    """Return a webhook's name among the bridges of a cluster: 32 hex digits, a hash of URL and queue."""
    return digest_of(webhook.url, webhook.queue)


def name_of_all(webhooks: Sequence[WebhookSettings]) -> str | None:
    """Return one name for all webhooks of a bridge; None if it has none."""
    return digest_of(*sorted({name_of(webhook) for webhook in webhooks})) if webhooks else None


def check_webhooks(webhooks: Sequence[WebhookSettings]) -> list[CheckedWebhook]:
    """Check all entries; raises `ConfigurationError` naming the entry and the key, never the secret."""
    if len(webhooks) > WEBHOOKS_MAX:
        raise ConfigurationError(f"webhook: at most {WEBHOOKS_MAX}")
    return [_check(number, settings) for number, settings in enumerate(webhooks, 1)]


def _check(number: int, settings: WebhookSettings) -> CheckedWebhook:
    key = "queue"
    try:
        parse_reference(settings.queue)
        key = "url"
        target = check_url(settings.url, allow_private=settings.allow_private, allow_http=settings.allow_http)
        key = "secret"
        secrets = (settings.secret,) if isinstance(settings.secret, str) else settings.secret
        keys = tuple(read_secret(secret) for secret in secrets)
        if not keys:
            raise ValueError("at least one is required")
    except (BadQueueReference, ValueError) as error:
        raise ConfigurationError(f"webhook {number}: {key}: {error}") from None
    return CheckedWebhook(settings, target, keys)


def read_secret(text: str) -> bytes:
    """Return the key of a secret such as ``whsec_...`` (base64 of 24 to 64 bytes; the prefix may be left out).

    Raises `ValueError` that does not repeat the secret.
    """
    encoded = text.strip().removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a secret must be whsec_ and base64") from None
    low, high = KEY_BYTES
    if not low <= len(key) <= high:
        raise ValueError(f"a secret must be base64 of {low} to {high} random bytes")
    return key
