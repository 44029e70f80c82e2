"""What can be set about ``queuebell listen``."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bridge.contract.errors import ConfigurationError
from bridge.contract.settings import LISTENER_TABLE, parse_toml, resolve

DEFAULT_BRIDGE = "http://127.0.0.1:8470"

Seconds = Annotated[float, Meta(gt=0, le=604_800)]


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key of the file's table ``[listener]``; in capitals after ``QUEUEBELL_`` in the environment."""

    bridge: str = DEFAULT_BRIDGE
    name: str | None = None
    batch: Annotated[int, Meta(ge=1, le=32)] = 32
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] = 32
    visibility_timeout: Seconds = 30.0
    max_attempts: Annotated[int, Meta(ge=0)] = 5
    poison_queue: str | None = None
    handler_timeout: Seconds | None = None
    claim_check: str | None = None
    ledger: str | None = None
    grace: Annotated[float, Meta(ge=0, le=604_800)] = 20.0
    log_format: Literal["plain", "json"] = "plain"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


# Keys of the file's top level that hold for listeners as well.
_SHARED = frozenset({"bridge", "log_format", "log_level"})


def load(
    file: str | None,
    *,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> ListenSettings:
    """Read ``file`` (or what ``QUEUEBELL_CONFIG`` names), the environment and the options into settings.

    Of the file's top level ``bridge`` and the two of the log count, its table ``[listener]`` wins over them. Raises
    `ConfigurationError`.
    """
    environment = os.environ if environment is None else environment
    file = file or environment.get("QUEUEBELL_CONFIG") or None
    table: dict[str, Any] = {}
    if file is not None:
        try:
            tables = parse_toml(pathlib.Path(file).read_text(encoding="utf-8"), file)
        except OSError as error:
            raise ConfigurationError(f"config: cannot read {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{file}: not TOML: it is not UTF-8") from None
        own = tables.get(LISTENER_TABLE, {})
        if not isinstance(own, dict):
            raise ConfigurationError(f"{file}: {LISTENER_TABLE} is a table")
        table = {key: value for key, value in tables.items() if key in _SHARED} | own
    variables = {name: text for name, text in environment.items() if name != "QUEUEBELL_CONFIG"}
    return resolve(ListenSettings, table=table, source=file or "configuration", environment=variables, options=options)
