"""A module is imported for one of its functions: it must not run a worker of its own meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bridge.contract.errors import ConfigurationError

_modules: list[tuple[str, list[ConfigurationError]]] = []


@contextlib.contextmanager
def importing(module: str) -> Iterator[None]:
    """Have `refuse_in_import` refuse while the block imports ``module``; the block then raises that refusal at its end.

    So it ends what asked for the import, also where the module swallowed it.
    """
    refused: list[ConfigurationError] = []
    _modules.append((module, refused))
    try:
        yield
    finally:
        _modules.remove((module, refused))
        if refused:
            raise refused[0]


def refuse_in_import() -> None:
    """Raise `ConfigurationError` where `importing` is under way: that worker would run instead of the one asked for."""
    if _modules:
        module, refused = _modules[-1]
        refused.append(
            ConfigurationError(
                f"module {module} runs a worker or a scaler while it is imported for its handler. Put that below "
                'if __name__ == "__main__": then `python` runs it, and `queuebell listen` only imports it'
            )
        )
        raise refused[-1]
