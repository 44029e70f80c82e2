"""The entries of the configuration: what is read out of them, and which one a complaint names."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.http.webhooks.settings import WEBHOOKS_MAX, Checked, WebhookSettings, check_webhooks

KEYS = (b"a" * 24, b"b" * 64)
SECRETS = tuple("whsec_" + base64.b64encode(key).decode() for key in KEYS)


def entry(**changes: Any) -> WebhookSettings:
    """A good entry, but for these."""
    return WebhookSettings(**{"url": "https://example.com/x", "queue": "a/b", "secret": SECRETS[0], **changes})


@pytest.mark.parametrize(("secret", "keys"), [(SECRETS[1], KEYS[1:]), (SECRETS, KEYS)], ids=["one", "rotated"])
def test_what_is_read_out_of_an_entry(secret: Any, keys: tuple[bytes, ...]) -> None:
    """Itself, its target, and a key for each secret in their order."""
    (checked,) = check_webhooks([entry(secret=secret)])
    target = ("https://example.com/x", "example.com", 443, False)
    assert checked == Checked(entry(secret=secret), checked.target, keys)
    assert checked.target == target


def test_as_many_as_there_may_be() -> None:
    """A thousand pass in their order, one more is refused."""
    entries = [entry(queue=f"a/q{number}") for number in range(WEBHOOKS_MAX)]
    assert [checked.settings for checked in check_webhooks(entries)] == entries
    with pytest.raises(ConfigurationError, match=r"^webhook: at most 1000$"):
        check_webhooks([*entries, entry()])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"queue": "a"}, "queue: "),
        ({"queue": "a", "url": "", "secret": ""}, "queue: "),
        ({"url": "", "secret": ""}, "url: a URL begins with https://"),
        ({"url": "http://example.com/"}, "url: .*allow_http = true"),
        ({"url": "https://10.0.0.1/"}, "url: .*allow_private = true"),
        ({"secret": "hunter2"}, "secret: a secret is whsec_ and base64|secret: a secret is base64 of 24 to 64"),
        ({"secret": (SECRETS[0], "whsec_")}, "secret: a secret is base64 of 24 to 64"),
        ({"secret": ()}, "secret: there has to be one"),
    ],
)
def test_a_complaint_names_entry_key_and_reason(changes: dict[str, Any], says: str) -> None:
    """Entries count from one; what comes first in an entry is told first."""
    for before in range(2):
        with pytest.raises(ConfigurationError, match=f"^webhook {before + 1}: {says}"):
            check_webhooks([*[entry()] * before, entry(**changes)])


@pytest.mark.parametrize(
    ("url", "switch", "other"),
    [
        ("http://example.com/", "allow_http", "allow_private"),
        ("https://10.0.0.1:9/", "allow_private", "allow_http"),
    ],
)
def test_an_entry_may_allow_more(url: str, switch: str, other: str) -> None:
    """Each of the two switches allows its own, and not the other's."""
    (checked,) = check_webhooks([entry(url=url, **{switch: True})])
    assert checked.target.url == url
    with pytest.raises(ConfigurationError, match=r"^webhook 1: url: "):
        check_webhooks([entry(url=url, **{other: True})])
