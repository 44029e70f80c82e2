"""Queuebell's public names, all in one place: put work on a queue, and a worker starts within milliseconds.

Each is loaded when it is first used, so that `import queuebell` loads no SDK and no web server.
"""

from __future__ import annotations

import importlib
import pathlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge import *  # noqa: F403
    from bridge import __version__ as __version__
    from listeners import *  # noqa: F403

_PACKAGES = ("bridge", "listeners")


def __getattr__(name: str) -> Any:
    if name == "__all__":  # asked for by `from queuebell import *`
        return __dir__()
    if name.startswith("__") and name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in map(_package, _PACKAGES):
        if name == "__version__" or name in package.__all__:
            value = globals()[name] = getattr(package, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({"__version__"}.union(*(_package(name).__all__ for name in _PACKAGES)))


def _package(name: str) -> Any:
    """Import one of our packages, whose names are words that others use as well."""
    package = importlib.import_module(name)
    if not (pathlib.Path(package.__file__ or "").parent / "py.typed").exists() or not hasattr(package, "__all__"):
        raise ImportError(
            f"`import {name}` finds {package.__file__ or list(package.__path__)}, which is not Queuebell's: a file or"
            f" folder called {name} comes first on sys.path. Rename it, or start the program from another folder.",
            name=name,
        )
    return package
