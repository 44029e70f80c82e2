"""Settings from a file, the environment and the command line, checked one by one; pure.

The command line overrides the environment, the environment the file, the file the default. An error names the key,
the origin of its value, and similar keys.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from queuebell.bridge.contract.errors import ConfigurationError

ENV_PREFIX = "QUEUEBELL_"
LISTENER_TABLE = "listener"
SCALE_TABLE = "scale"
CHILD_VARIABLES = frozenset({"QUEUEBELL_ID", "QUEUEBELL_QUEUE", "QUEUEBELL_ATTEMPT", "QUEUEBELL_BURIAL"})
"""Set by `listen --exec` for its commands; not settings."""
_NO_SETTINGS = CHILD_VARIABLES | {
    "QUEUEBELL_API_KEY",
    "QUEUEBELL_API_KEY_FILE",
    "QUEUEBELL_CLIENT_CERT",
    "QUEUEBELL_CLIENT_KEY",
}
"""Variables that are not settings: credentials, because settings are shown to people, and those of commands."""

T = TypeVar("T", bound=msgspec.Struct)

_REFUSED: Final = 0.8
"""From this similarity to a key on, an unknown variable is rejected as a misspelling."""


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Return the tables of a file; raise `ConfigurationError` with ``source`` and the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source}: invalid TOML: {error}") from None
    except RecursionError:
        raise ConfigurationError(f"{source}: values are nested too deeply") from None


def resolve(
    kind: type[T],
    *,
    table: Mapping[str, Any] | None = None,
    source: str = "configuration",
    environment: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> T:
    """Return settings of ``kind`` from a file, the environment and the command line.

    ``table`` is one table of the file ``source``, in which every key must be known. From ``environment``, variables
    ``QUEUEBELL_<KEY>`` are used, lists separated by commas, or split already; others belong to other commands, unless
    they are very similar to a key. ``options`` are those of the command line, None if not given; unknown names are
    ignored. Raises `ConfigurationError`.
    """
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in (table or {}).items():
        if key not in fields:
            raise ConfigurationError(f"{source}: unknown key '{key}'{_meant(key, fields)}")
        values[key] = _convert(value, fields[key], f"{source}: {key}", strict=True)
    for variable, text in (environment or {}).items():
        if not variable.startswith(ENV_PREFIX) or variable in _NO_SETTINGS:
            continue
        key = variable.removeprefix(ENV_PREFIX).lower()
        if key in fields:
            values[key] = _convert(_split(text, fields[key]), fields[key], f"environment {variable}", strict=False)
        elif near := difflib.get_close_matches(key, fields, n=1, cutoff=_REFUSED):
            raise ConfigurationError(f"environment: unknown {variable}; did you mean {ENV_PREFIX}{near[0].upper()}?")
    for key, value in (options or {}).items():
        if key in fields and value is not None:
            origin = f"option --{key.replace('_', '-')}"
            values[key] = _convert(_split(value, fields[key]), fields[key], origin, strict=False)
    return kind(**values)


def doubtful(kind: type[msgspec.Struct], environment: Mapping[str, Any]) -> list[str]:
    """Return a warning for each variable that `resolve` ignores, but that may be a misspelled key.

    Only very similar names are rejected, as other programs set variables with this prefix, for example Kubernetes.
    """
    keys = [field.name for field in msgspec.structs.fields(kind)]
    lines = []
    for variable in sorted(environment):
        key = variable.removeprefix(ENV_PREFIX).lower()
        if not variable.startswith(ENV_PREFIX) or variable in _NO_SETTINGS or key in keys:
            continue
        if difflib.get_close_matches(key, keys, n=1, cutoff=_REFUSED):
            continue  # `resolve` rejects it and names the key
        if near := difflib.get_close_matches(key, keys, n=1, cutoff=0.6):
            meant = f"{ENV_PREFIX}{near[0].upper()}"
            lines.append(f"environment: {variable} is not a setting and has no effect; did you mean {meant}?")
    return lines


def _convert(value: Any, type_: Any, origin: str, *, strict: bool) -> Any:
    if _has_nul(value):
        # Invalid in paths, addresses and names; system calls would each fail in their own way.
        raise ConfigurationError(f"{origin}: contains a NUL character")
    try:
        return msgspec.convert(value, type_, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigurationError(_plain(origin, str(error), type_)) from None


_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_BOUNDS: Final = {">=": "{} or more", "<=": "{} or less", ">": "more than {}", "<": "less than {}"}
_expected = re.compile(r"Expected `([a-z]+)(?: \| null)?`(?: ([<>]=?) (\S+))?(?:, got `([a-z]+)`)?").fullmatch
_field = re.compile(r"Object (contains unknown|missing required) field `(.*)`").fullmatch


def _plain(origin: str, message: str, type_: Any) -> str:
    """Return msgspec's error in words for people who do not know Python, after the origin of the value."""
    text, _, place = message.partition(" - at `$")
    # The tables of a list are counted from 1, as elsewhere.
    origin += re.sub(r"\[(\d+)\]", lambda found: f" {int(found[1]) + 1}", place.rstrip("`")).replace(".", ": ")
    if (expected := _expected(text)) and expected[1] in _KINDS:
        bound = "" if expected[2] is None else f", {_BOUNDS[expected[2]].format(expected[3].removesuffix('.0'))}"
        given = "" if expected[4] is None else f", not {_KINDS.get(expected[4], 'a ' + expected[4])}"
        return f"{origin}: must be {_KINDS[expected[1]]}{bound}{given}"
    if found := _field(text):
        return f"{origin}: " + (f"unknown key '{found[2]}'" if "unknown" in found[1] else f"{found[2]} is missing")
    if text.startswith("Invalid enum value"):
        known = [value for each in (type_, *get_args(type_)) if get_origin(each) is Literal for value in get_args(each)]
        return f"{origin}: {text.removeprefix('Invalid enum value ')} is not a valid value" + (
            f"; valid are {', '.join(known)}" if known else ""
        )
    return f"{origin}: {text.replace('`', '')}"


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(_has_nul(part) for part in value.values())
    return isinstance(value, list | tuple) and any(_has_nul(part) for part in value)


def _split(value: Any, type_: Any) -> Any:
    """Split ``a, b`` if the type is a list."""
    kinds = {get_origin(each) for each in (type_, *get_args(type_))}
    if isinstance(value, str) and kinds & {tuple, list}:
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _meant(key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else f"; known keys: {', '.join(known)}"
