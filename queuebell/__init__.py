"""Queuebell's public names, all in one place: put work on a queue, and a worker starts within milliseconds.

Each is loaded when it is first used, so that `import queuebell` loads no SDK and no web server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queuebell.bridge import *  # noqa: F403
    from queuebell.bridge import __version__ as __version__
    from queuebell.listeners import *  # noqa: F403

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
    return importlib.import_module(f"queuebell.{name}")
