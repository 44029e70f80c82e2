"""What serves an address, by its scheme; each module is loaded when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from bridge.contract.errors import ConfigurationError


def class_for(url: str, table: Mapping[str, tuple[str, str]], key: str) -> Any:
    """Return the class that ``table`` (scheme to module and name) has for ``url``.

    Raises `ConfigurationError`, without repeating the URL, which may hold a secret; ``key`` begins it.
    """
    scheme, colon, _ = url.partition(":")
    found = table.get(scheme.lower()) if colon else None
    if found is None:
        known = ", ".join(f"{scheme}:" for scheme in table)
        raise ConfigurationError(f"{key}: an address must start with one of {known}")
    module, name = found
    return getattr(importlib.import_module(module), name)


def argument_of(url: str, key: str, file_scheme: str, example: str) -> str:
    """Return what a class takes: the name of ``memory:``, the path of ``file_scheme``, else the whole URL.

    Raises `ConfigurationError` as `class_for` does; ``example`` is a path.
    """
    scheme, _, rest = url.partition(":")
    if scheme.lower() == "memory":
        return rest.strip("/") or "default"
    if scheme.lower() != file_scheme:
        return url
    if "?" in rest or "#" in rest:
        raise ConfigurationError(
            f"{key}: {file_scheme} takes no options, for example {file_scheme}://{example}; in a path, "
            "write ? as %3F and # as %23"
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(f"{key}: the address is malformed") from None
    if parts.netloc or not parts.path.strip("/"):
        raise ConfigurationError(
            f"{key}: {file_scheme} takes a path and no host, for example {file_scheme}://{example}"
        )
    path = unquote(parts.path)
    if "\0" in path:
        raise ConfigurationError(f"{key}: the path of its file contains a NUL character")
    return path
