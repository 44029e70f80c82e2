"""What the configuration says of one webhook: ``[[webhook]]`` with url, queue and secret."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bridge.contract.errors import BadQueueReference, ConfigurationError
from bridge.contract.names import parse_reference
from bridge.http.webhooks.addresses import Target, check_url
from bridge.http.webhooks.signing import read_secret
from bridge.queues.base import digest_of

WEBHOOKS_MAX = 1000


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One endpoint and the queue that it hears of."""

    url: str
    queue: str
    secret: str | tuple[str, ...]
    """``whsec_...``; a list of them while secrets are rotated, each signs."""
    allow_private: bool = False
    """Addresses that are not public, other ports, and addresses in place of names. Defaults to false."""
    allow_http: bool = False
    handshake: bool = True
    """Whether the target has to consent (CloudEvents abuse protection) before anything is posted. Defaults to true."""

    def __repr__(self) -> str:
        # The secret is nobody's business, and a path often holds another.
        return f"WebhookSettings(queue={self.queue!r})"


class Checked(msgspec.Struct, frozen=True):
    """A webhook's settings that passed, and what was read out of them."""

    settings: WebhookSettings
    target: Target
    keys: tuple[bytes, ...]


def name_of(webhook: WebhookSettings) -> str:
    """Return what bridges of a cluster call a webhook: 32 hex digits of its URL and queue, which tell neither."""
    return digest_of(webhook.url, webhook.queue)


def name_of_all(webhooks: Sequence[WebhookSettings]) -> str | None:
    """Return what they call all webhooks of one bridge together; None where it has none."""
    return digest_of(*sorted({name_of(webhook) for webhook in webhooks})) if webhooks else None


def check_webhooks(webhooks: Sequence[WebhookSettings]) -> list[Checked]:
    """Check all entries; raises `ConfigurationError` that names the entry and the key, never the secret."""
    if len(webhooks) > WEBHOOKS_MAX:
        raise ConfigurationError(f"webhook: at most {WEBHOOKS_MAX}")
    return [_check(number, settings) for number, settings in enumerate(webhooks, 1)]


def _check(number: int, settings: WebhookSettings) -> Checked:
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
    return Checked(settings, target, keys)
