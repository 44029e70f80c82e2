"""The prefix of topics as an option of an address: ``nats://host:4222?prefix=site7``."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from bridge.contract.errors import ConfigurationError
from bridge.contract.names import DEFAULT_PREFIX, is_token

OPTION = "prefix"


def take_prefix(url: str) -> tuple[str, str]:
    """Return the address without its option ``prefix``, and the prefix; `DEFAULT_PREFIX` where none is given.

    Raises `ConfigurationError` for a prefix that is no token; a malformed address is left for others to refuse.
    """
    before, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    given = [value for key, value in pairs if key == OPTION]
    if not given:
        return url, DEFAULT_PREFIX
    rest = urlencode([pair for pair in pairs if pair[0] != OPTION])
    return f"{before}?{rest}" if rest else before, check_prefix(given[-1])


def with_prefix(url: str, prefix: str) -> str:
    """Return a broker's address with ``prefix`` as its option, where it names none; any other address as it is.

    Raises `ConfigurationError` for a prefix that is no token.
    """
    before, _, query = url.partition("?")
    scheme, mark, _ = before.partition("://")
    named = any(key == OPTION for key, _ in parse_qsl(query, keep_blank_values=True))
    if prefix == DEFAULT_PREFIX or named or not mark or scheme.lower() in {"http", "https"}:
        return url
    if before.count("[") != before.count("]"):
        return url
    option = urlencode({OPTION: check_prefix(prefix)})
    return f"{before}?{query}&{option}" if query else f"{before}?{option}"


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if it may begin subjects and topics. Raises `ConfigurationError`."""
    if not is_token(prefix):
        raise ConfigurationError(
            "prefix: must be letters, digits, '_' and '-', 80 at most, starting with a letter or digit"
        )
    return prefix
