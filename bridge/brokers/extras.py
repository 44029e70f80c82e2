"""The command that installs an extra, as this copy of Queuebell was installed."""

from __future__ import annotations

import functools
import pathlib
import sys
from importlib import metadata

import msgspec

NAME = "queuebell"


class _Origin(msgspec.Struct):
    """The origin of an installed distribution (direct_url.json, PEP 610), as far as it is needed."""

    url: str
    dir_info: dict[str, bool] | None = None


def hint(extra: str, origin: bytes | None, installer: str, prefix: str) -> str:
    """Return the command that adds ``extra``, and where to run it if that matters.

    ``origin`` is the distribution's direct_url.json, None for one from an index; ``installer`` is the tool that
    installed it, and ``prefix`` the environment's folder, which shows tools that make one for each program.
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
    """Return `hint` for this copy, which may run from a checkout without being installed."""
    try:
        found = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        return f"pip install -e '.[{extra}]' in the checkout"
    origin = found.read_text("direct_url.json")
    installer = (found.read_text("INSTALLER") or "").strip()
    return hint(extra, None if origin is None else origin.encode(), installer, sys.prefix)
