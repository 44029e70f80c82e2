"""How a user gets an extra, in the way that this copy was installed: a hint that does not fit costs an hour."""

from __future__ import annotations

import functools
import pathlib
import sys
from importlib import metadata

import msgspec

NAME = "queuebell"


class _Origin(msgspec.Struct):
    """Where an installed distribution came from (direct_url.json, PEP 610), as far as it matters here."""

    url: str
    dir_info: dict[str, bool] | None = None


def hint(extra: str, origin: bytes | None, installer: str, prefix: str) -> str:
    """Return the command that installs ``extra`` beside what is there, with where to give it if that matters.

    ``origin`` is the distribution's direct_url.json, None where it came from an index or was never installed;
    ``installer`` the tool that did it, and ``prefix`` the environment's folder, which tells tools apart that keep one
    for each program.
    """
    tool = "uv pip install" if installer == "uv" else "pip install"
    parents = pathlib.PurePath(prefix).parts
    if parents[-3:-1] == ("pipx", "venvs"):
        tool = "pipx install --force"
    elif parents[-3:-1] == ("uv", "tools"):
        tool = "uv tool install --force"
    place = None if origin is None else msgspec.json.decode(origin, type=_Origin).dir_info
    if place is None:
        return f"{tool} '{NAME}[{extra}]'"
    if place.get("editable"):
        return f"{tool} -e '.[{extra}]' in the checkout"
    return f"{tool} '.[{extra}]' in the checkout that this was installed from"


@functools.cache
def install(extra: str) -> str:
    """Return `hint` for this very copy; one that runs from a checkout without being installed is told as such."""
    try:
        found = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        return f"pip install -e '.[{extra}]' in the checkout"
    origin = found.read_text("direct_url.json")
    installer = (found.read_text("INSTALLER") or "").strip()
    return hint(extra, None if origin is None else origin.encode(), installer, sys.prefix)
